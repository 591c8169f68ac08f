package house

import (
	"go/token"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestDefaultMux: nothing serves http.DefaultServeMux. The packages of the embedded NATS
// server register /debug/pprof and /debug/vars there, which show the daemon's memory.
func TestDefaultMux(t *testing.T) {
	uses := map[string]bool{"DefaultServeMux": true, "Handle": true, "HandleFunc": true, "ListenAndServe": true, "ListenAndServeTLS": true, "Serve": true, "ServeTLS": true}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		s.each(func(pkg, name string, at token.Position) {
			assert.False(t, pkg == "http" && uses[name], "%s:%d uses http.%s: make a mux and an http.Server", s.name, at.Line, name)
		})
	}
}
