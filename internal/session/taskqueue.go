package session

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	caller "github.com/scopefs/scopefs/internal/client"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools/delegate"
	"github.com/scopefs/scopefs/tools/limit"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// taskQueues bound the tasks that run at the same time. Each depth has slots of its own: a
// task that waits for one below it holds no slot that the other needs. The zero value has none.
type taskQueues struct {
	mu    sync.Mutex
	slots map[taskQueue]*limit.Slots
}

// taskQueue names the slots of one depth, and of one agent at that depth; "": of all agents.
type taskQueue struct {
	depth int
	agent scope.ID
}

// hold waits for a slot for a task of an agent. One agent has half of all slots. A resumed task, whose runner works already, does not
// wait: it may run beside those that have all slots.
func (q *taskQueues) hold(ctx context.Context, depth int, id scope.ID, parallel int, resumed bool) (free func(), err error) {
	take := (*limit.Slots).Take
	if resumed {
		take = func(s *limit.Slots, _ context.Context) (func(), error) {
			free, ok := s.Try()
			if !ok {
				free = func() {}
			}
			return free, nil
		}
	}
	own, err := take(q.of(taskQueue{depth, id}, max(1, parallel/2)), ctx)
	if err != nil {
		return nil, err
	}
	all, err := take(q.of(taskQueue{depth, ""}, parallel), ctx)
	if err != nil {
		own()
		return nil, err
	}
	return func() { all(); own() }, nil
}

func (q *taskQueues) of(which taskQueue, size int) *limit.Slots {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.slots == nil {
		q.slots = map[taskQueue]*limit.Slots{}
	}
	if q.slots[which] == nil {
		q.slots[which] = limit.NewSlots(size)
	}
	return q.slots[which]
}

// runnerEnv returns the environment of a runner: that of all sandboxes, what the operator sets for runners, where the task's
// programs and tools are, and what the definition says of its model.
func runnerEnv(programs, socket string, m agents.Model, all, runners map[string]string) map[string]string {
	env := map[string]string{"PATH": sandbox.DefaultPath}
	maps.Copy(env, all)
	maps.Copy(env, runners)
	env["PATH"] = programs + ":" + env["PATH"]
	env[caller.TaskEnv] = socket
	if m.Name != "" {
		env["SCOPEFS_MODEL"] = m.Name
	}
	if m.Temperature != nil {
		env["SCOPEFS_TEMPERATURE"] = strconv.FormatFloat(*m.Temperature, 'g', -1, 64)
	}
	if m.MaxTurns > 0 {
		env["SCOPEFS_MAX_TURNS"] = strconv.Itoa(m.MaxTurns)
	}
	if m.Timeout > 0 {
		env["SCOPEFS_TIMEOUT"] = strconv.FormatFloat(m.Timeout.Seconds(), 'g', -1, 64)
	}
	return env
}

// runnerRequest is the input of a runner with input: json. docs/delegation.md describes it.
type runnerRequest struct {
	Agent       scope.ID          `json:"agent"`
	Kind        string            `json:"kind,omitempty"`
	Model       string            `json:"model,omitempty"`
	Temperature *float64          `json:"temperature,omitempty"`
	MaxTurns    int               `json:"max_turns,omitempty"`
	Timeout     float64           `json:"timeout,omitempty"` // seconds
	Context     []json.RawMessage `json:"context"`           // the system message, then the messages of the caller's scopes
	delegate.Job
}

// runnerInput returns what a runner reads. A module has no prompt of its own.
func runnerInput(form config.RunnerInput, def *agents.Agent, prompt string, task delegate.Task) (string, error) {
	if task.Module {
		prompt = ""
	}
	if form != config.RunnerJSON {
		return strings.TrimPrefix(prompt+"\n\n", "\n\n") + task.Text, nil
	}
	m := def.Model
	r := runnerRequest{
		Agent: def.Name, Kind: m.Kind, Model: m.Name, Temperature: m.Temperature, MaxTurns: m.MaxTurns, Timeout: m.Timeout.Seconds(),
		Context: []json.RawMessage{}, Job: task.Job,
	}
	if prompt != "" {
		system, err := json.Marshal(map[string]string{"type": "system", "message": prompt})
		if err != nil {
			return "", err
		}
		r.Context = append(r.Context, system)
	}
	var given []json.RawMessage
	if err := json.Unmarshal(task.Context.Environment().JSON(), &given); err != nil {
		return "", err
	}
	r.Context = append(r.Context, given...)
	text, err := json.Marshal(r)
	return string(text) + "\n", err
}

// runnerSocket begins the name of a task's socket, and of no agent's.
const runnerSocket = "task."

// RemoveRunnerSockets removes the names of the sockets of tasks that the last daemon has left. A task that lives on has its socket.
func RemoveRunnerSockets(p config.Paths) {
	dir := filepath.Dir(p.ToolSocket(""))
	left, _ := os.ReadDir(dir)
	for _, e := range left {
		if strings.HasPrefix(e.Name(), runnerSocket) {
			os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}
