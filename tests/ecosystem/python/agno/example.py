from agno.agent import Agent
from agno.models.openai import OpenAIChat
from agno.tools.e2b import E2BTools

tools = E2BTools(timeout=600)
try:
    agent = Agent(model=OpenAIChat(id="gpt-5"), tools=[tools])
    print(agent.run("Write the first ten square numbers into squares.csv and add them up.").content)
finally:
    tools.sandbox.kill()
