#!/bin/sh
# Claude Code as a runner. It reads the prompt and the task on standard input and
# prints the answer. Its only tools are the member's: --tools "" switches its own off.
# Its environment has ANTHROPIC_API_KEY, and ANTHROPIC_BASE_URL for another address.
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 DISABLE_AUTOUPDATER=1
exec claude --print --bare --tools "" --strict-mcp-config \
	--mcp-config '{"mcpServers": {"scopefs": {"command": "scopefs", "args": ["mcp"]}}}' \
	--allowedTools mcp__scopefs --no-session-persistence
