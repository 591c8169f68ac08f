package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/approvals"
)

// fakeSource is a daemon of a test.
type fakeSource struct {
	top  api.Top
	did  []string
	fail error
}

func (f *fakeSource) Top(context.Context) (api.Top, error) { return f.top, f.fail }

func (f *fakeSource) Approval(_ context.Context, id string) (approvals.Approval, error) {
	for _, p := range f.top.Approvals {
		if p.ID == id {
			return p, nil
		}
	}
	return approvals.Approval{}, approvals.ErrNotFound
}

func (f *fakeSource) Approve(_ context.Context, id string, _ api.DecideRequest) (approvals.Approval, error) {
	f.did = append(f.did, id+" true")
	return approvals.Approval{ID: id, Tool: "bash", State: "decided"}, nil
}

func (f *fakeSource) Deny(_ context.Context, id string, _ api.DecideRequest) (approvals.Approval, error) {
	f.did = append(f.did, id+" false")
	return approvals.Approval{ID: id, Tool: "bash", State: "decided"}, nil
}

func (f *fakeSource) Kill(_ context.Context, id string) (api.Session, error) {
	f.did = append(f.did, "kill "+id)
	return api.Session{ID: id, Agent: "a"}, nil
}

func (f *fakeSource) Follow(ctx context.Context, agent string, lines chan<- string) {
	defer close(lines)
	for i := 0; ; i++ {
		select {
		case lines <- fmt.Sprintf("line %d of %s \x1b[2J", i, agent):
		case <-ctx.Done():
			return
		}
	}
}

var topStart = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// sample has two agents that do something and one that is idle.
func sample() api.Top {
	call := func(id string, command string) approvals.Approval {
		args, _ := json.Marshal(map[string]string{"command": command})
		return approvals.Approval{ID: id, State: approvals.Waits, Agent: "a", Tool: "bash", Arguments: args, Asked: topStart}
	}
	session := func(agent scope.ID, id string, kind api.SessionKind, cpu float64) api.TopSession {
		return api.TopSession{Session: api.Session{ID: id, Agent: agent, Kind: kind, Since: topStart.Add(-90 * time.Second), Command: "npm \x1b[2J test"}, Use: api.Use{CPU: cpu, Written: 2 << 20, Memory: 10 << 20, Processes: 3}, Program: "node\n"}
	}
	return api.Top{Time: topStart,
		Agents:    []api.TopAgent{{ID: "a", State: api.Mounted, Denials: 7}, {ID: "b", State: api.Mounted}, {ID: "idle", State: api.Mounted}},
		Sessions:  []api.TopSession{session("a", "1-1", api.RunSession, 1), session("b", "c2-1", api.ClientSession, 1)},
		Approvals: []approvals.Approval{call("first", "rm -rf x"), call("second", "true")},
	}
}

// press sends keys, runs what they start, and draws.
func press(t *testing.T, m *model, keys ...string) string {
	t.Helper()
	for _, key := range keys {
		run(t, m, m.key(key))
		m.draw()
	}
	return m.draw()
}

// run runs commands until none follows. Ticks and lines of a log are not followed.
func run(t *testing.T, m *model, cmd command) {
	t.Helper()
	for cmd != nil {
		msg := cmd()
		cmd = m.update(msg)
		switch msg.(type) {
		case topMsg, logMsg:
			return
		}
	}
}

func startTop(t *testing.T, f *fakeSource) *model {
	t.Helper()
	m := newModel(t.Context(), f, time.Second)
	t.Cleanup(func() { m.stop() })
	m.update(sizeMsg{120, 20})
	run(t, m, m.refresh)
	return m
}

// TestTopTable: the second answer gives the processor's percentage. Text of agents is
// escaped, and a row is one line of the screen's width.
func TestTopTable(t *testing.T) {
	f := &fakeSource{top: sample()}
	m := startTop(t, f)
	f.top = sample()
	f.top.Time = topStart.Add(2 * time.Second)
	f.top.Sessions[0].CPU = 2
	run(t, m, m.refresh)
	out := m.draw()
	assert.Contains(t, out, "1-1                        run     1m32    50.0  10.0MiB   2.0MiB      3")
	assert.Contains(t, out, "first                      waits")
	assert.NotContains(t, out, "idle   ")
	plain := strings.NewReplacer(bold, "", reverse, "", unstyled, "").Replace(out)
	assert.NotContains(t, plain, "\x1b")
	assert.NotContains(t, out, "\x1b[2J")
	assert.Contains(t, out, `npm \u001b[2J test`)
	assert.Equal(t, 20, strings.Count(out, "\n")+1)
	for line := range strings.Lines(plain) {
		assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 120)
	}
	assert.Contains(t, press(t, m, "i"), "idle   ")

	f.fail = errors.New("gone")
	cmd := m.update(m.refresh())
	require.NotNil(t, cmd)
	assert.Equal(t, quit(), cmd())
	assert.Equal(t, f.fail, m.fatal)
}

// TestTopApprove: a call is approved on its own page alone, after all its lines were on the
// screen; what is selected stays selected when rows come and go.
func TestTopApprove(t *testing.T) {
	f := &fakeSource{top: sample()}
	m := startTop(t, f)
	m.update(sizeMsg{100, 7})
	press(t, m, "y", "n", "a", "enter")
	assert.Empty(t, f.did, "nothing is selected")
	press(t, m, "down", "down", "down", "enter", "y")
	assert.Empty(t, f.did, "the page is not read to its end")
	out := press(t, m, "down")
	assert.Contains(t, out, `"command": "true"`)
	m.update(sizeMsg{39, 50})
	press(t, m, "space", "y")
	assert.Empty(t, f.did, "the screen is too narrow for the lines of a call")
	m.update(sizeMsg{100, 7})
	out = press(t, m, "space", "space")
	assert.Contains(t, out, "y approve once")
	press(t, m, "y")
	assert.Equal(t, []string{"second true"}, f.did)
	assert.Contains(t, m.draw(), "bash of : decided")

	f.top.Approvals = f.top.Approvals[:1]
	f.top.Time = f.top.Time.Add(time.Second)
	run(t, m, m.refresh)
	press(t, m, "enter", "y", "n")
	assert.Len(t, f.did, 1, "what was selected has gone: no other call takes its place")
	press(t, m, "up", "down", "enter", "n")
	assert.Equal(t, "first false", f.did[1])
	press(t, m, "enter", "esc", "y")
	assert.Len(t, f.did, 2)
}

// TestTopLongCall: a call longer than the screen cannot be approved by its beginning.
func TestTopLongCall(t *testing.T) {
	f := &fakeSource{top: sample()}
	text, err := json.Marshal(map[string]string{"command": strings.Repeat("echo harmless; ", 500) + "curl evil"})
	require.NoError(t, err)
	f.top.Approvals[0].Arguments = text
	m := startTop(t, f)
	out := press(t, m, "down", "down", "enter")
	for i := 0; !strings.Contains(out, "y approve once"); i++ {
		require.Less(t, i, 100)
		assert.Empty(t, f.did)
		out = press(t, m, "y", "down", "pgdown", "y")
		if len(f.did) > 0 {
			break
		}
	}
	assert.LessOrEqual(t, len(f.did), 1)
	press(t, m, "y")
	assert.Equal(t, []string{"first true"}, f.did)
}

// TestTopKill: x asks, and only y kills.
func TestTopKill(t *testing.T) {
	f := &fakeSource{top: sample()}
	m := startTop(t, f)
	press(t, m, "down", "x", "y")
	assert.Empty(t, f.did, "an agent is no session")
	out := press(t, m, "down", "down", "down", "x")
	assert.Contains(t, out, "kill 1-1 of a? y, or any other key")
	press(t, m, "n", "y", "x", "enter", "y")
	assert.Empty(t, f.did)
	press(t, m, "x", "y")
	assert.Equal(t, []string{"kill 1-1"}, f.did)
}

// TestTopLog: l follows the log of the selected agent until esc; lines are escaped.
func TestTopLog(t *testing.T) {
	f := &fakeSource{top: sample()}
	m := startTop(t, f)
	press(t, m, "down", "l")
	var cmd command
	for range 3 * maxLogLines {
		cmd = m.update(next(m.lines)())
	}
	require.NotNil(t, cmd)
	page := m.page.(*logPage)
	assert.LessOrEqual(t, len(page.text), maxLogLines)
	assert.Contains(t, m.draw(), `line 1500 of a \u001b[2J`)
	press(t, m, "esc")
	assert.Nil(t, m.page)
	for {
		msg := next(m.lines)().(logMsg)
		if m.update(msg); !msg.ok {
			break
		}
	}
	assert.NotContains(t, m.draw(), "line 1")
}
