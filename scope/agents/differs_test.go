package agents

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDiffers: each key of a definition that a view is mounted with is named as it is written.
func TestDiffers(t *testing.T) {
	parse := func(keys string) *Definition {
		def, err := ParseDefinition("a.md", []byte("---\nname: a\n"+keys+"---\n"))
		require.NoError(t, err, keys)
		return def
	}
	none := parse("")
	assert.Empty(t, none.Differs(parse("")))
	for keys, want := range map[string][]string{
		"dir: /x\n": {"dir"}, "user: nobody\n": {"user"}, "branch: b\n": {"branch"}, "identity: caller\n": {"identity"}, "placement: one\n": {"placement"},
		"view: {data: mediated}\n": {"view.data"}, "view: {record: all}\n": {"view.record"}, "view: {cache: none}\n": {"view.cache"},
		"view: {changes: held}\n": {"view.changes"}, "view: {allow_other: true}\n": {"view.allow_other"}, "view: {xattrs: true}\n": {"view.xattrs"},
		"view: {access: read}\n": {"view.access"}, "view: {paths: {x: hide}}\n": {"view.paths"}, "view: {hardlinks: read}\n": {"view.hardlinks"},
		"history: {size: 5MiB}\n": {"history.size"}, "history: {size: 5%}\n": {"history.size"}, "history: {age: 3d}\n": {"history.age"},
		"history: {dir: /x}\n": {"history.dir"}, "history: {exclude: [x]}\n": {"history.exclude"},
		"limits: {memory: 1GiB}\n": {"limits.memory"}, "limits: {pids: 3}\n": {"limits.pids"}, "limits: {cpu: 2}\n": {"limits.cpu"},
		"limits: {timeout: 3s}\n": {"limits.timeout"}, "limits: {open_files: 2000}\n": {"limits.open_files"}, "limits: {links: 3}\n": {"limits.links"},
		"limits: {view_memory: 64MiB}\n": {"limits.view_memory"}, "limits: {disk: 1GiB}\n": {"limits.disk"}, "limits: {files: 3000}\n": {"limits.files"},
		"env: {A: b}\n": {"env"}, "network: host\n": {"network"}, "view: {data: mediated, changes: kept}\ndir: /x\n": {"dir", "view.changes", "view.data"},
	} {
		now := parse(keys)
		assert.Equal(t, want, now.Differs(none), keys)
		assert.Equal(t, want, none.Differs(now), keys)
	}
}
