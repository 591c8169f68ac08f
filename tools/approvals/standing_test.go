package approvals

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

// stander asks for commands of a shell and for a file tool.
type stander struct {
	t     *testing.T
	all   *Set
	mu    sync.Mutex
	ended []string // under mu
}

// ends returns which standing approvals have ended, and why.
func (s *stander) ends() []string {
	synctest.Wait() // for timers
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ended)
}

func newStander(t *testing.T) *stander {
	s := &stander{t: t, all: NewSet(nil)}
	s.all.Ended = func(p Approval, why string) {
		if p.State == Stands {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.ended = append(s.ended, p.Tool+": "+why)
		}
	}
	return s
}

// ask returns the state of an agent's request: Granted also by a standing approval.
func (s *stander) ask(p Approval, change func(*Approval)) string {
	p.Agent, p.Session, p.Policy = "a", "s", "1"
	if change != nil {
		change(&p)
	}
	time.Sleep(time.Millisecond) // so that the list has the order of the requests
	said, _, err := s.all.Ask(p, free)
	require.NoError(s.t, err)
	if said.State == Stands {
		return Granted
	}
	return said.State
}

func command(text string) Approval {
	return Approval{Tool: "bash", Kind: KindCommand, Subject: text, Arguments: json.RawMessage(fmt.Sprintf(`{"command":%q}`, text))}
}

func (s *stander) sh(text string) string { return s.ask(command(text), nil) }

// write asks to write a text to a path.
func (s *stander) write(path, text string, change func(*Approval)) string {
	return s.ask(Approval{Tool: "write_file", Kind: KindPath, Path: path, Object: Object{Path: path}, Arguments: json.RawMessage(fmt.Sprintf(`{"path":%q,"text":%q}`, path, text))}, change)
}

// stand makes a standing approval from the newest request that waits.
func (s *stander) stand(terms Terms) (Approval, error) {
	var id string
	for _, p := range s.all.List() {
		if p.State == Waits {
			id = p.ID
		}
	}
	return s.all.Stand(id, terms, Answer{}, ok)
}

func (s *stander) mustStand(terms Terms) Approval {
	p, err := s.stand(terms)
	require.NoError(s.t, err)
	return p
}

// TestStandingApprovals: it covers the requests of one agent, session, chain and tool that
// it was made for, under the same rules, as long as it lasts.
func TestStandingApprovals(t *testing.T) {
	for name, test := range map[string]func(*stander){
		"a pattern": func(s *stander) {
			assert.Equal(s.t, Waits, s.sh("git status"))
			assert.Equal(s.t, Waits, s.sh("git log"))
			assert.Equal(s.t, Waits, s.sh("git -c x log"))
			s.mustStand(Terms{Pattern: "git -c **", For: time.Hour})
			assert.Equal(s.t, Waits, s.sh("git status"), "another call waits still")
			s.mustStand(Terms{Pattern: "git *", For: time.Hour})
			for _, text := range []string{"git status", "git log", "git show"} {
				assert.Equal(s.t, Granted, s.sh(text), text)
				assert.Equal(s.t, Granted, s.sh(text), text+", again")
			}
			assert.Equal(s.t, Waits, s.sh("git status; rm x"))
			for name, change := range map[string]func(*Approval){
				"more than a command": func(p *Approval) { p.Subject = "" },
				"another agent":       func(p *Approval) { p.Agent = "b" },
				"for another":         func(p *Approval) { p.Chain = "c>a" },
				"another program":     func(p *Approval) { p.Version = "2" },
				"an envelope":         func(p *Approval) { p.Envelope = json.RawMessage("{}") },
			} {
				assert.Equal(s.t, Waits, s.ask(command("git status"), change), name)
			}
			time.Sleep(time.Hour + time.Second)
			assert.Equal(s.t, Waits, s.sh("git status"), "its time is over")
			assert.Equal(s.t, []string{"bash: expired", "bash: expired"}, s.ends())
		},
		"the same arguments": func(s *stander) {
			content := func(hash string) func(*Approval) { return func(p *Approval) { p.Content = hash } }
			assert.Equal(s.t, Waits, s.write("x", "", content("1")))
			s.mustStand(Terms{})
			assert.Equal(s.t, Granted, s.write("x", "", content("2")))
			assert.Equal(s.t, Waits, s.write("x", "y", nil))
			moved := func(p *Approval) { p.Object.Path = "elsewhere" }
			assert.Equal(s.t, Waits, s.write("x", "", moved), "x leads elsewhere")
			time.Sleep(1000 * time.Hour)
			assert.Equal(s.t, Granted, s.write("x", "", nil))
		},
		"paths": func(s *stander) {
			assert.Equal(s.t, Waits, s.write("src/x", "", nil))
			s.mustStand(Terms{Pattern: "src/**"})
			assert.Equal(s.t, Granted, s.write("src/y", "", nil))
			assert.Equal(s.t, Waits, s.write("y", "", nil))
			assert.Equal(s.t, Waits, s.sh("src/x"), "another tool")
		},
		"a session": func(s *stander) {
			assert.Equal(s.t, Waits, s.sh("make"))
			p := s.mustStand(Terms{Session: true})
			assert.Equal(s.t, Granted, s.sh("make"))
			assert.Equal(s.t, Granted, s.sh("make"))
			assert.Equal(s.t, Waits, s.ask(command("make"), func(p *Approval) { p.Session = "other" }))
			s.all.EndSession(p.Session)
			assert.Equal(s.t, Waits, s.sh("make"))
			assert.Equal(s.t, []string{"bash: its session has ended"}, s.ends())
		},
		"revoked": func(s *stander) {
			assert.Equal(s.t, Waits, s.sh("make"))
			p := s.mustStand(Terms{})
			assert.Equal(s.t, Granted, s.sh("make"), "the call that waited")
			_, err := s.all.Revoke(p.ID, Answer{}, func(Approval) error { return errors.New("disk full") })
			assert.Error(s.t, err)
			assert.Equal(s.t, Granted, s.sh("make"), "not recorded, not revoked")
			_, err = s.all.Revoke(p.ID, Answer{}, ok)
			assert.NoError(s.t, err)
			assert.Equal(s.t, Waits, s.sh("make"))
			_, err = s.all.Revoke(p.ID, Answer{}, ok)
			assert.ErrorIs(s.t, err, ErrNotFound)
		},
		"other rules": func(s *stander) {
			assert.Equal(s.t, Waits, s.sh("make"))
			p := s.mustStand(Terms{})
			assert.Equal(s.t, Waits, s.ask(command("make"), func(p *Approval) { p.Policy = "2" }))
			s.all.Recheck([]scope.ID{"a"}, versionOf(&p))
			assert.Empty(s.t, s.ends())
			s.all.Recheck([]scope.ID{"a"}, func(scope.ID) string { return "2" })
			assert.Equal(s.t, []string{"bash: the rules have changed"}, s.ends())
		},
		"denied before": func(s *stander) {
			assert.Equal(s.t, Waits, s.sh("git status"))
			_, err := s.all.Decide(s.all.List()[0].ID, false, Answer{}, ok)
			require.NoError(s.t, err)
			assert.Equal(s.t, Waits, s.sh("git log"))
			s.mustStand(Terms{Pattern: "git *"})
			assert.Equal(s.t, Denied, s.sh("git status"), "what the operator has denied stays denied")
		},
		"taken down": func(s *stander) {
			assert.Equal(s.t, Waits, s.sh("git status"))
			s.mustStand(Terms{Pattern: "git *"})
			require.NoError(s.t, s.all.Forget("a"))
			assert.Equal(s.t, Granted, s.sh("git status"))
		},
		"wrong terms": func(s *stander) {
			assert.Equal(s.t, Waits, s.sh("git -c x status"))
			for _, terms := range []Terms{{Pattern: "git *"}, {Pattern: "*"}, {Pattern: "hg **"}, {For: -1}, {For: 1, Session: true}} {
				_, err := s.stand(terms)
				assert.Error(s.t, err, "%+v", terms)
			}
			_, err := s.all.Stand("x", Terms{}, Answer{}, ok)
			assert.ErrorIs(s.t, err, ErrNotFound)
			_, err = s.all.Stand(s.all.List()[0].ID, Terms{}, Answer{}, func(Approval) error { return errors.New("disk full") })
			assert.Error(s.t, err)
			assert.Equal(s.t, Waits, s.sh("git -c x status"))
		},
		"the clock was set back": func(s *stander) {
			s.all.now = func() time.Time { return time.Now().Add(24 * time.Hour) }
			assert.Equal(s.t, Waits, s.sh("make"))
			s.mustStand(Terms{For: time.Hour})
			assert.Equal(s.t, Granted, s.sh("make"))
			assert.Equal(s.t, Granted, s.sh("make"))
			s.all.now = time.Now
			assert.Equal(s.t, Waits, s.sh("make"))
		},
		"too many": func(s *stander) {
			for i := range maxStanding + 1 {
				assert.Equal(s.t, Waits, s.sh(fmt.Sprint("make ", i)))
				_, err := s.stand(Terms{})
				assert.Equal(s.t, i == maxStanding, err != nil)
				_ = s.sh(fmt.Sprint("make ", i)) // uses up what the request got
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
		all := NewSet(nil)
		host := Approval{Agent: "a", Lasting: true, Tool: "network", Session: "s", Kind: KindHost, Subject: "x.example.org:443", Arguments: json.RawMessage(`{"host":"x.example.org","port":443}`)}
		var outcomes []string
		record := func(p Approval) error { outcomes = append(outcomes, p.State); return nil }
		got := make(chan Approval, 1)
		go func() { p, _ := all.Wait(t.Context(), host, record); got <- p }()
		synctest.Wait()
		made, err := all.Stand(all.List()[0].ID, Terms{Pattern: "*.example.org:443"}, Answer{}, ok)
		require.NoError(t, err)
		assert.Equal(t, made.ID, (<-got).ID)
		other := host
		other.Subject, other.Arguments = "y.example.org:443", json.RawMessage(`{}`)
		p, err := all.Wait(t.Context(), other, record)
		require.NoError(t, err)
		assert.Equal(t, Stands, p.State)
		assert.Equal(t, []string{Waits, Stands, Stands}, outcomes)
		_, err = all.Revoke(made.ID, Answer{}, ok)
		require.NoError(t, err)
		assert.Equal(t, Waits, waitSecond(t, all, host), "nothing of it is left")
	})
}
