from cloud_sandbox import Sandbox
from cloud_sandbox.deepagents import SandboxBackend
from deepagents import create_deep_agent
from langchain_openai import ChatOpenAI

with Sandbox.create() as sandbox:
    sandbox.write_file(
        "/workspace/mean.py", "def mean(values):\n    return sum(values) / (len(values) - 1)\n"
    )
    agent = create_deep_agent(
        model=ChatOpenAI(model="gpt-5"),
        backend=SandboxBackend(sandbox),
        system_prompt="Work in /workspace.",
    )
    answer = agent.invoke({"messages": [("user", "mean([1, 2, 3]) is 3.0. Fix mean.py.")]})
    print(answer["messages"][-1].content)
