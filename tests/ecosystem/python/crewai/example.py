from crewai import Agent
from crewai_tools import E2BExecTool, E2BFileTool, E2BPythonTool
from e2b_code_interpreter import Sandbox

with Sandbox.create(timeout=600) as sandbox:
    tools = [
        tool(sandbox_id=sandbox.sandbox_id) for tool in (E2BExecTool, E2BFileTool, E2BPythonTool)
    ]
    agent = Agent(
        role="Analyst",
        goal="Answer questions about data",
        backstory="You work with the tools of a sandbox.",
        tools=tools,
        llm="openai/gpt-5",
    )
    print(agent.kickoff("Write the first ten square numbers into squares.csv and add them up."))
