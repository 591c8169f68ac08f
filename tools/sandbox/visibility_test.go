package sandbox

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestLinked: the host's path of the view has a link only where nothing else is.
func TestLinked(t *testing.T) {
	for at, want := range map[string]bool{
		"/home/me/project": true, "/srv/x": true, "/opt/y/z": true, "/root/x": true, "/home/agents": true, "/opt/tool-2": true,
		"": false, "relative": false, "/": false, "/home": false, "/home/agent": false, "/home/agent/x": false, "/workspace": false, "/workspace/x": false,
		"/usr/src/x": false, "/usr": false, "/etc/x": false, "/proc/1": false, "/dev/x": false, "/tmp/x": false, "/var/tmp/x": false, "/run/x": false, "/var/run/x": false,
		"/opt/tool": false, "/opt/tool/x": false, "/opt": false, "/home/me/../x": false, "/lib64/x": false, "/context/x": false,
	} {
		spec := Spec{At: at, Expose: []string{"/opt/tool"}}
		assert.Equal(t, want, spec.linked(), at)
	}
}
