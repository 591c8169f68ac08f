package scope

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestGitLeads: only paths of the work tree are followed.
func TestGitLeads(t *testing.T) {
	for text, want := range map[string][2][]string{
		"[core]\n\thooksPath = tools/hooks\n":                                {{"tools/hooks"}, nil},
		"[core]\n\thooksPath = ./a/../b/\n":                                  {{"b"}, nil},
		"[core]\n\thooksPath = /workspace/h\n":                               {{"h"}, nil},
		"[core]\n\thooksPath = .git/hooks\n":                                 {},
		"[core]\n\thooksPath = /home/x\n":                                    {},
		"[core]\n\thooksPath = ../x\n":                                       {},
		"[core]\n\thooksPath = ~/x\n":                                        {},
		"[core]\n\thooksPath\n":                                              {},
		"[core]\n\thooksPath = .\n":                                          {},
		"[include]\n\tpath = ../conf/git\n":                                  {nil, []string{"conf/git"}},
		"[includeIf \"onbranch:x\"]\n\tpath = ../a\n[include]\n\tpath = b\n": {nil, []string{"a"}},
		"[include]\n\tpath = ../../a\n":                                      {},
		"[core]\n\thooksPath = \"x\n":                                        {},
	} {
		hooks, settings := GitLeads(".git", []byte(text))
		assert.Equal(t, want, [2][]string{hooks, settings}, text)
	}
}
