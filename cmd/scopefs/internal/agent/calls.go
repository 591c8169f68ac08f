package agent

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/file/worker"
)

// callID is the form of a call's id, which no name of an idle thread has.
var callID = regexp.MustCompile(`^[a-z2-7]{13}$`)

// callOf returns the call that a process belongs to, which the kernel names by a thread
// id; "" for an unknown one. byTool reports that the process is that of a file tool.
func (a *Agent) callOf(pid int) (call string, byTool bool) {
	a.mu.Lock()
	sessions := slices.Collect(maps.Keys(a.sessions))
	a.mu.Unlock()
	for _, s := range sessions {
		tag, own, ours := s.TagOf(pid)
		switch {
		case !ours:
			continue
		case tag != worker.Arg:
			return tag, false
		case own: // our own program: other processes of the sandbox choose their names
			if name := threadName(pid); callID.MatchString(name) {
				return name, true
			}
		}
		return "", false
	}
	return "", false
}

// threadName returns the name of a thread (proc_tid_comm(5)). The file worker names each
// thread after the call that it works for.
func threadName(tid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", tid))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// once holds the violations of file tools' calls that are in the log. A refused tool looks
// up each name of the path to find the one for its error. Those lookups are no further
// violations.
type once map[violation]bool

type violation struct{ call, path string }

// maxOnce bounds once. A violation that is forgotten is recorded again.
const maxOnce = 1 << 10

func (o once) has(e audit.Event) bool {
	return e.Verdict == audit.Violation && o[violation{e.Call, e.Path}]
}

func (o *once) add(e audit.Event) {
	if e.Verdict != audit.Violation {
		return
	}
	if *o == nil || len(*o) == maxOnce {
		*o = once{}
	}
	(*o)[violation{e.Call, e.Path}] = true
}

// renames holds the file tools' calls whose rename(2) a view has refused for the old
// name. The kernel returns one errno for both names.
type renames struct {
	mu    sync.Mutex
	calls map[string]bool
}

// maxRenames bounds renames. A call that is forgotten has the new name in its error.
const maxRenames = 1 << 10

// add keeps a denial of a file tool's call.
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
