#!/bin/sh
# A runner with two models: the checker is done by Codex, other members by Claude Code.
# The member's tool scope_info says which member the task is for.
here=$(dirname "$0")
case $(scopefs call scope_info --json) in
*'"agent":"checker"'*) exec "$here/runner-codex.sh" ;;
*) exec "$here/runner-claude.sh" ;;
esac
