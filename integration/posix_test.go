package integration

import (
	"maps"
	"slices"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
)

// refusedByRule are the cases of go-fuse's suite that a view must fail, each
// with the rule of security that it breaks.
var refusedByRule = map[string]string{}

// TestPosix runs go-fuse's suite against a view.
func TestPosix(t *testing.T) {
	for _, data := range []string{"passthrough", "mediated"} {
		h := newHost(t, map[string]string{"posix": "view: {data: " + data + "}"})
		for _, name := range slices.Sorted(maps.Keys(posixtest.All)) {
			if why, ok := refusedByRule[name]; ok {
				t.Logf("%s: refused: %s", name, why)
				continue
			}
			t.Run(data+"/"+name, func(t *testing.T) {
				h.must("run", "posix", "--", "sh", "-c", "rm -rf /workspace/* /workspace/.[a-z]*")
				posixtest.All[name](t, h.view("posix"))
			})
		}
	}
}
