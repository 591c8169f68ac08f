package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

type shellIn struct {
	Command string `json:"command"`
	Stdin   string `json:"stdin,omitempty"`
}

func (in shellIn) Shell() (string, bool) { return in.Command, in.Stdin == "" }

// stander has a shell and a file tool under ask.
type stander struct {
	*desk
	t     *testing.T
	all   *Approvals
	ended []string
}

func newStander(t *testing.T) *stander {
	s := &stander{t: t, desk: &desk{}, all: NewApprovals(nil)}
	s.all.Ended = func(p Approval, why string) { s.ended = append(s.ended, p.Tool+": "+why) }
	return s
}

// call makes a call of an agent's session and returns its error's code.
func (s *stander) call(change func(*Gate), tool, args string) Code {
	gate := s.gate(s.t, "policy: {tools: {ask: [bash, write_file], exclude: [stat]}}\nargument_filters: {\"*\": [secret]}\nrate_limits: {bash: 100/hour}")
	gate.Approvals = s.all
	if change != nil {
		change(&gate)
	}
	shell, err := New("bash", "", Hints{}, func(context.Context, Env, shellIn) (echoOut, error) { return echoOut{}, nil })
	require.NoError(s.t, err)
	set, err := NewSet(gate, shell, echo(s.t, "write_file", Hints{Writes: true}, nil))
	require.NoError(s.t, err)
	time.Sleep(time.Millisecond) // so that the list has the order of the calls
	_, err = set.Call(s.t.Context(), Call{Tool: tool, Args: json.RawMessage(args)})
	if err == nil {
		return ""
	}
	return code(s.t, err)
}

func (s *stander) sh(command string) Code {
	return s.call(nil, "bash", fmt.Sprintf(`{"command":%q}`, command))
}

// stand makes a standing approval from the newest call that waits.
func (s *stander) stand(terms Terms) (Approval, error) {
	var id string
	for _, p := range s.all.List() {
		if p.State == ApprovalWaits {
			id = p.ID
		}
	}
	return s.all.Stand(id, terms, ok)
}

func (s *stander) mustStand(terms Terms) Approval {
	p, err := s.stand(terms)
	require.NoError(s.t, err)
	return p
}

// TestStandingApprovals: it covers the calls of one agent, session, chain and tool that
// it was made for, under the same rules, as long as it lasts.
func TestStandingApprovals(t *testing.T) {
	for name, test := range map[string]func(*stander){
		"a pattern": func(s *stander) {
			assert.Equal(s.t, ApprovalRequired, s.sh("git status"))
			assert.Equal(s.t, ApprovalRequired, s.sh("git log"))
			assert.Equal(s.t, ApprovalRequired, s.sh("git -c x log"))
			s.mustStand(Terms{Pattern: "git -c **", For: time.Hour})
			assert.Equal(s.t, ApprovalRequired, s.sh("git status"), "another call waits still")
			s.mustStand(Terms{Pattern: "git *", For: time.Hour})
			for _, command := range []string{"git status", "git log", "git show"} {
				assert.Equal(s.t, Code(""), s.sh(command), command)
				assert.Equal(s.t, Code(""), s.sh(command), command+", again")
			}
			assert.Equal(s.t, ApprovalRequired, s.sh("git status; rm x"))
			assert.Equal(s.t, ApprovalRequired, s.call(nil, "bash", `{"command":"git status","stdin":"x"}`), "more than a command")
			assert.Equal(s.t, ApprovalRequired, s.call(func(g *Gate) { g.Agent = "b" }, "bash", `{"command":"git status"}`), "another agent")
			assert.Equal(s.t, ApprovalRequired, s.call(func(g *Gate) { g.Chain = "c>a" }, "bash", `{"command":"git status"}`), "for another")
			assert.Equal(s.t, Denied, s.sh("git secret"), "a filter")
			assert.Contains(s.t, s.told(), "approval bash used")
			time.Sleep(time.Hour + time.Second)
			assert.Equal(s.t, ApprovalRequired, s.sh("git status"), "its time is over")
			assert.Equal(s.t, []string{"bash: expired", "bash: expired"}, s.ended)
		},
		"the same arguments": func(s *stander) {
			s.hash = "1"
			assert.Equal(s.t, ApprovalRequired, s.call(nil, "write_file", `{"path":"x"}`))
			s.mustStand(Terms{})
			s.hash = "2"
			assert.Equal(s.t, Code(""), s.call(nil, "write_file", `{"path":"x"}`))
			assert.Equal(s.t, ApprovalRequired, s.call(nil, "write_file", `{"path":"x","text":"y"}`))
			moved := func(g *Gate) {
				g.Object = func(context.Context, string, string, bool) (Object, error) { return Object{Path: "elsewhere"}, nil }
			}
			assert.Equal(s.t, ApprovalRequired, s.call(moved, "write_file", `{"path":"x"}`), "x leads elsewhere")
			time.Sleep(1000 * time.Hour)
			assert.Equal(s.t, Code(""), s.call(nil, "write_file", `{"path":"x"}`))
		},
		"paths": func(s *stander) {
			assert.Equal(s.t, ApprovalRequired, s.call(nil, "write_file", `{"path":"src/x"}`))
			s.mustStand(Terms{Pattern: "src/**"})
			assert.Equal(s.t, Code(""), s.call(nil, "write_file", `{"path":"src/y"}`))
			assert.Equal(s.t, ApprovalRequired, s.call(nil, "write_file", `{"path":"y"}`))
			assert.Equal(s.t, ApprovalRequired, s.sh("src/x"), "another tool")
		},
		"a session": func(s *stander) {
			assert.Equal(s.t, ApprovalRequired, s.sh("make"))
			p := s.mustStand(Terms{Session: true})
			assert.Equal(s.t, Code(""), s.sh("make"))
			assert.Equal(s.t, Code(""), s.sh("make"))
			assert.Equal(s.t, ApprovalRequired, s.call(func(g *Gate) { g.Session = "other" }, "bash", `{"command":"make"}`))
			s.all.EndSession(p.Session)
			assert.Equal(s.t, ApprovalRequired, s.sh("make"))
			assert.Equal(s.t, []string{"bash: its session has ended"}, s.ended)
		},
		"revoked": func(s *stander) {
			assert.Equal(s.t, ApprovalRequired, s.sh("make"))
			p := s.mustStand(Terms{})
			assert.Equal(s.t, Code(""), s.sh("make"), "the call that waited")
			_, err := s.all.Revoke(p.ID, func(Approval) error { return errors.New("disk full") })
			assert.Error(s.t, err)
			assert.Equal(s.t, Code(""), s.sh("make"), "not recorded, not revoked")
			_, err = s.all.Revoke(p.ID, ok)
			assert.NoError(s.t, err)
			assert.Equal(s.t, ApprovalRequired, s.sh("make"))
			_, err = s.all.Revoke(p.ID, ok)
			assert.ErrorIs(s.t, err, ErrNoApproval)
		},
		"other rules": func(s *stander) {
			assert.Equal(s.t, ApprovalRequired, s.sh("make"))
			p := s.mustStand(Terms{})
			other := load(s.t, "policy: {tools: {ask: [bash, write_file]}}").Grants
			assert.Equal(s.t, ApprovalRequired, s.call(func(g *Gate) { g.Rules = func() Rules { return other } }, "bash", `{"command":"make"}`))
			version := func(scope.ID) string { return p.Policy }
			s.all.Recheck([]scope.ID{"a"}, version)
			assert.Empty(s.t, s.ended)
			s.all.Recheck([]scope.ID{"a"}, func(scope.ID) string { return other.Version() })
			assert.Equal(s.t, []string{"bash: the rules have changed"}, s.ended)
			denied := load(s.t, "policy: {tools: {ask: [write_file], exclude: [bash]}}").Grants
			assert.Equal(s.t, Denied, s.call(func(g *Gate) { g.Rules = func() Rules { return denied } }, "bash", `{"command":"make"}`))
		},
		"denied before": func(s *stander) {
			assert.Equal(s.t, ApprovalRequired, s.sh("git status"))
			_, err := s.all.Decide(s.all.List()[0].ID, false, nil, ok)
			require.NoError(s.t, err)
			assert.Equal(s.t, ApprovalRequired, s.sh("git log"))
			s.mustStand(Terms{Pattern: "git *"})
			assert.Equal(s.t, Denied, s.sh("git status"), "what the operator has denied stays denied")
		},
		"taken down": func(s *stander) {
			assert.Equal(s.t, ApprovalRequired, s.sh("git status"))
			s.mustStand(Terms{Pattern: "git *"})
			require.NoError(s.t, s.all.Forget("a"))
			assert.Equal(s.t, Code(""), s.sh("git status"))
		},
		"wrong terms": func(s *stander) {
			assert.Equal(s.t, ApprovalRequired, s.sh("git -c x status"))
			for _, terms := range []Terms{{Pattern: "git *"}, {Pattern: "*"}, {Pattern: "hg **"}, {For: -1}, {For: 1, Session: true}} {
				_, err := s.stand(terms)
				assert.Error(s.t, err, "%+v", terms)
			}
			_, err := s.all.Stand("x", Terms{}, ok)
			assert.ErrorIs(s.t, err, ErrNoApproval)
			_, err = s.all.Stand(s.all.List()[0].ID, Terms{}, func(Approval) error { return errors.New("disk full") })
			assert.Error(s.t, err)
			assert.Equal(s.t, ApprovalRequired, s.sh("git -c x status"))
		},
		"the clock was set back": func(s *stander) {
			s.all.now = func() time.Time { return time.Now().Add(24 * time.Hour) }
			assert.Equal(s.t, ApprovalRequired, s.sh("make"))
			s.mustStand(Terms{For: time.Hour})
			assert.Equal(s.t, Code(""), s.sh("make"))
			assert.Equal(s.t, Code(""), s.sh("make"))
			s.all.now = time.Now
			assert.Equal(s.t, ApprovalRequired, s.sh("make"))
		},
		"too many": func(s *stander) {
			for i := range maxStanding + 1 {
				assert.Equal(s.t, ApprovalRequired, s.sh(fmt.Sprint("make ", i)))
				_, err := s.stand(Terms{})
				assert.Equal(s.t, i == maxStanding, err != nil)
				_ = s.sh(fmt.Sprint("make ", i)) // uses up what the call got
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(newStander(t)) })
		})
	}
}

// TestStandingApprovalOfHosts: connections that wait and those that come get it.
func TestStandingApprovalOfHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := NewApprovals(nil)
		host := Approval{Agent: "a", Lasting: true, Tool: "network", Session: "s", Kind: KindHost, Subject: "x.example.org:443", Arguments: json.RawMessage(`{"host":"x.example.org","port":443}`)}
		var outcomes []string
		record := func(p Approval) error { outcomes = append(outcomes, p.State); return nil }
		got := make(chan Approval, 1)
		go func() { p, _ := all.Wait(t.Context(), host, record); got <- p }()
		synctest.Wait()
		made, err := all.Stand(all.List()[0].ID, Terms{Pattern: "*.example.org:443"}, ok)
		require.NoError(t, err)
		assert.Equal(t, made.ID, (<-got).ID)
		other := host
		other.Subject, other.Arguments = "y.example.org:443", json.RawMessage(`{}`)
		p, err := all.Wait(t.Context(), other, record)
		require.NoError(t, err)
		assert.Equal(t, ApprovalStands, p.State)
		assert.Equal(t, []string{ApprovalWaits, ApprovalStands, ApprovalStands}, outcomes)
		_, err = all.Revoke(made.ID, ok)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		p, err = all.Wait(ctx, host, record)
		require.NoError(t, err)
		assert.Equal(t, ApprovalWaits, p.State, "nothing of it is left")
	})
}

// TestApprovalsRecordUnlocked: calls of other agents go on while a decision, or the end of an approval, is recorded. The
// decision does not hold yet, and no second one is made.
func TestApprovalsRecordUnlocked(t *testing.T) {
	now := time.Now()
	a := NewApprovals(nil)
	a.now = func() time.Time { return now }
	count := func() *Error { return nil }
	ask := func(agent scope.ID) Approval {
		said, _, err := a.ask(Approval{Agent: agent, Tool: "bash", Session: "s"}, count)
		require.Nil(t, err)
		return said
	}
	recorded := 0
	record := func(state string) func(Approval) error {
		return func(p Approval) error {
			recorded++
			assert.Equal(t, ApprovalWaits, ask("other").State)
			assert.Equal(t, ApprovalWaits, ask("a").State, "nothing holds while %s is recorded", state)
			_, err := a.Decide(p.ID, true, nil, nil)
			assert.Error(t, err)
			return nil
		}
	}
	_, err := a.Decide(ask("a").ID, true, nil, record("approved"))
	require.NoError(t, err)
	assert.Equal(t, ApprovalGranted, ask("a").State)

	made, err := a.Stand(ask("a").ID, Terms{For: time.Minute}, record("standing"))
	require.NoError(t, err)
	assert.Equal(t, ApprovalGranted, ask("a").State)
	assert.Equal(t, ApprovalStands, ask("a").State)
	_, err = a.Revoke(made.ID, func(Approval) error {
		assert.Equal(t, ApprovalWaits, ask("a").State)
		return errors.New("not recorded")
	})
	assert.Error(t, err)
	require.NoError(t, a.forget(func(p *Approval) bool { return p.Agent == "a" }))
	assert.Equal(t, ApprovalStands, ask("a").State, "it holds again")

	a.Ended = func(Approval, string) { recorded++; ask("other") }
	now = now.Add(2 * time.Minute)
	assert.Equal(t, ApprovalWaits, ask("a").State)
	assert.Equal(t, 4, recorded)
}
