package approvals

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	scoped "github.com/scopefs/scopefs/scope/context"
)

// TestGrant: a standing approval without a request covers what it names, of the agent, the rules and the session, until its
// end; no call that sees a context, and none that is bound to changes.
func TestGrant(t *testing.T) {
	now := time.Now()
	kept := newDrawer()
	a := NewSet(kept)
	a.now = func() time.Time { return now }
	var ends []string
	a.Ended = func(p Approval, why string) { ends = append(ends, why) }
	tool := Approval{Agent: "a", Tool: "bash", Kind: KindTool, Policy: "1"}
	made, err := a.Grant(tool, Terms{For: time.Hour}, ok)
	require.NoError(t, err)
	host := Approval{Agent: "a", Tool: "network", Kind: KindHost, Policy: "1", Session: "s"}
	_, err = a.Grant(host, Terms{Session: true, Pattern: "*.example.com:80,443"}, ok)
	require.NoError(t, err)
	assert.Len(t, kept.approvals, 1, "what ends with a session ends with the daemon")
	_, err = a.Grant(host, Terms{Pattern: "no port"}, ok)
	assert.Error(t, err)

	call := Approval{Agent: "a", Tool: "bash", Kind: KindCommand, Subject: "make; rm x", Policy: "1", Version: "2", Session: "any"}
	connect := Approval{Agent: "a", Tool: "network", Kind: KindHost, Subject: "x.example.com:443", Policy: "1", Session: "s"}
	for name, c := range map[string]struct {
		of     Approval
		change func(*Approval)
		want   bool
	}{
		"the tool":           {call, func(*Approval) {}, true},
		"another tool":       {call, func(p *Approval) { p.Tool = "write_file" }, false},
		"other rules":        {call, func(p *Approval) { p.Policy = "2" }, false},
		"another agent":      {call, func(p *Approval) { p.Agent = "b" }, false},
		"a chain":            {call, func(p *Approval) { p.Chain = "b>a" }, false},
		"a context":          {call, func(p *Approval) { p.Context = []scoped.Part{{Name: "x"}} }, false},
		"a set of changes":   {call, func(p *Approval) { p.Content = "h" }, false},
		"the host":           {connect, func(*Approval) {}, true},
		"its other port":     {connect, func(p *Approval) { p.Subject = "x.example.com:80" }, true},
		"a third port":       {connect, func(p *Approval) { p.Subject = "x.example.com:8443" }, false},
		"another host":       {connect, func(p *Approval) { p.Subject = "example.org:443" }, false},
		"another session":    {connect, func(p *Approval) { p.Session = "t" }, false},
		"a server's network": {connect, func(p *Approval) { p.Tool = "network:x" }, false},
	} {
		p := c.of
		c.change(&p)
		assert.Equal(t, c.want, a.Covered(&p), name)
	}

	now = now.Add(time.Hour + time.Second)
	assert.False(t, a.Covered(&call))
	assert.Len(t, a.List(), 1)
	assert.Equal(t, []string{"expired"}, ends)
	a.EndSession("s")
	assert.False(t, a.Covered(&connect))
	assert.Equal(t, []string{"expired", "its session has ended"}, ends)
	assert.Empty(t, kept.approvals, made.ID)
}

// TestGrantWakes: a request that waits is decided by a standing approval that is granted meanwhile.
func TestGrantWakes(t *testing.T) {
	a := NewSet(nil)
	waits := Approval{Agent: "a", Tool: "network", Kind: KindHost, Subject: "x:443", Lasting: true}
	said := make(chan Approval)
	go func() {
		p, err := a.Wait(t.Context(), waits, ok)
		assert.NoError(t, err)
		said <- p
	}()
	assert.Eventually(t, func() bool { return len(a.List()) == 1 }, time.Minute, time.Millisecond)
	_, err := a.Grant(Approval{Agent: "a", Tool: "network", Kind: KindHost}, Terms{Pattern: "x:443"}, ok)
	require.NoError(t, err)
	assert.Equal(t, Stands, (<-said).State)
}

// TestAlone: without somebody who attends the agent, only a standing approval decides, and nothing waits.
func TestAlone(t *testing.T) {
	a := NewSet(nil)
	a.Alone = true
	ask := func() error {
		_, _, err := a.Ask(Approval{Agent: "a", Tool: "bash"}, free)
		return err
	}
	assert.ErrorIs(t, ask(), ErrNobody)
	defer a.Attend("b")()
	assert.ErrorIs(t, ask(), ErrNobody, "of another agent")
	leave := a.Attend("a")
	assert.NoError(t, ask())
	leave()
	require.NoError(t, a.Forget("a"))
	assert.ErrorIs(t, ask(), ErrNobody)
	_, err := a.Grant(Approval{Agent: "a", Tool: "bash", Kind: KindTool}, Terms{}, ok)
	require.NoError(t, err)
	assert.NoError(t, ask())
}
