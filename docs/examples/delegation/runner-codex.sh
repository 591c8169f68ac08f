#!/bin/sh
# Codex as a runner. It reads the prompt and the task on standard input and prints the
# answer. Its own tools are switched off, but for apply_patch, which has no switch:
# --sandbox read-only refuses its changes.
# Its environment has OPENAI_API_KEY, and OPENAI_BASE_URL for another address.
set -- -c model_provider=api \
	-c "model_providers.api={name='api', wire_api='responses', env_key='OPENAI_API_KEY', supports_websockets=false, base_url='${OPENAI_BASE_URL:-https://api.openai.com/v1}'}" \
	-c "mcp_servers.scopefs={command='scopefs', args=['mcp'], env_vars=['SCOPEFS_MCP'], required=true, default_tools_approval_mode='approve', tool_timeout_sec=3600}" \
	-c agents.enabled=false -c skills.bundled.enabled=false -c tools.experimental_request_user_input.enabled=false \
	-c web_search=disabled -c analytics.enabled=false -c feedback.enabled=false -c check_for_update_on_startup=false
for feature in shell_tool view_image image_generation goals apps plugins; do
	set -- "$@" --disable "$feature"
done
exec codex exec --strict-config --skip-git-repo-check --ephemeral --sandbox read-only "$@" -
