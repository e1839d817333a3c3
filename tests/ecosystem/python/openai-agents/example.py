from agents import Runner
from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions
from agents.run import RunConfig
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.entries import File

agent = SandboxAgent(
    name="Mechanic",
    model="gpt-5",
    instructions="Find and fix the bug in the workspace.",
    default_manifest=Manifest(
        entries={
            "mean.py": File(
                content=b"def mean(values):\n    return sum(values) / (len(values) - 1)\n"
            ),
        }
    ),
)
config = RunConfig(
    sandbox=SandboxRunConfig(
        client=E2BSandboxClient(),
        options=E2BSandboxClientOptions(sandbox_type="e2b"),
    )
)
result = Runner.run_sync(agent, "mean([1, 2, 3]) is 3.0. Why?", run_config=config)
print(result.final_output)
