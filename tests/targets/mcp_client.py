"""Calls the tools of an MCP server through the official client library, and prints what came as one line of JSON.

    python tests/targets/mcp_client.py CALLS COMMAND ...     CALLS: JSON, a list of [tool, arguments]
"""
import asyncio
import json
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def main(calls, command):
    server = StdioServerParameters(command=command[0], args=command[1:])
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        initialized = await session.initialize()
        await session.send_ping()
        tools = await session.list_tools()
        # All at once: answers may come in another order.
        results = await asyncio.gather(*(session.call_tool(name, given) for name, given in calls), return_exceptions=True)
        print(json.dumps({
            "server": initialized.model_dump(mode="json", by_alias=True),
            "tools": [tool.model_dump(mode="json", by_alias=True) for tool in tools.tools],
            "results": [
                {"exception": str(result)} if isinstance(result, Exception) else result.model_dump(mode="json", by_alias=True)
                for result in results
            ],
        }))


asyncio.run(main(json.loads(sys.argv[1]), sys.argv[2:]))
