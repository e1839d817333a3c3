"""Python keeps its state: an agent's steps build on each other."""

from cloud_sandbox import Sandbox

with Sandbox.create(user_id="examples") as sandbox:
    sandbox.run_code("prices = {'tea': 3, 'cake': 5}")
    print("sum:", sandbox.run_code("sum(prices.values())").result)

    # What fails says why, and leaves the state as it is.
    failed = sandbox.run_code("prices['coffee']")
    assert failed.error is not None
    print("failed:", failed.error.name, failed.error.message)

    # Another context has variables of its own.
    other = sandbox.contexts.create("python")
    print("elsewhere:", sandbox.run_code("'prices' in globals()", context=other).result)
