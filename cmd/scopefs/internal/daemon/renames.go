package daemon

import (
	"sync"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
)

// renames holds the file tools' calls whose rename(2) a view has refused for the old
// name. The kernel returns one errno for both names.
type renames struct {
	mu    sync.Mutex
	calls map[string]bool
}

// maxRenames bounds renames. A call that is forgotten has the new name in its error.
const maxRenames = 1 << 10

// add notes a denial of a file tool's call.
func (r *renames) add(e audit.Event) {
	if e.Op != scope.OpRenameFrom.String() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls == nil || len(r.calls) == maxRenames {
		r.calls = map[string]bool{}
	}
	r.calls[e.Call] = true
}

// take reports whether the old name of a call's rename was refused, once.
func (r *renames) take(call string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer delete(r.calls, call)
	return r.calls[call]
}
