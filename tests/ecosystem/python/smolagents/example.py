import os

from smolagents import CodeAgent, OpenAIModel

model = OpenAIModel(
    model_id="gpt-5",
    api_base=os.environ.get("OPENAI_BASE_URL"),
    api_key=os.environ["OPENAI_API_KEY"],
)
with CodeAgent(tools=[], model=model, executor_type="e2b") as agent:
    print(agent.run("What is the 100th prime number?"))
