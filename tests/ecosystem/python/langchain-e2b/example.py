from deepagents import create_deep_agent
from e2b import Sandbox
from langchain_e2b import E2BSandbox
from langchain_openai import ChatOpenAI

with Sandbox.create() as sandbox:
    sandbox.files.write(
        "/home/user/mean.py", "def mean(values):\n    return sum(values) / (len(values) - 1)\n"
    )
    agent = create_deep_agent(
        model=ChatOpenAI(model="gpt-5"),
        backend=E2BSandbox(sandbox=sandbox),
        system_prompt="Work in /home/user.",
    )
    answer = agent.invoke({"messages": [("user", "mean([1, 2, 3]) is 3.0. Fix mean.py.")]})
    print(answer["messages"][-1].content)
