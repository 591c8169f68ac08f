package audit

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/internal/peer"
)

// own is an event that the channel of agent a may write.
func own() Event {
	return Event{Event: KindFile, Agent: "a", Op: "open", Path: "p\xff\u202e\\" + strings.Repeat("long/", maxPath), Verdict: Deny, Rule: "r"}
}

// TestChannel: each agent's events are in the log as [Log.Append] writes them, for a log of this process and for one of another. A
// channel works with the next process, too, and ends with the log.
func TestChannel(t *testing.T) {
	start, process := writers(t)
	for name, open := range map[string]func(dir string) (*Log, error){
		"here":  func(dir string) (*Log, error) { return Open(dir, Options{}) },
		"there": func(dir string) (*Log, error) { return Start(start, dir, Options{Retry: 10 * time.Millisecond}) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l, err := open(dir)
			require.NoError(t, err)
			_, err = l.Append(noCtx, own())
			require.NoError(t, err)
			a, b := l.Channel("a"), l.Channel("b")
			var both sync.WaitGroup
			for c, agent := range map[*Channel]string{a: "a", b: "b"} {
				for range 8 {
					both.Go(func() {
						for range 50 {
							e := own()
							e.Agent = agent
							_, err := c.Append(noCtx, e)
							assert.NoError(t, err)
						}
					})
				}
			}
			both.Wait()
			got := map[string]int{}
			events := all(t, dir)
			for _, e := range events {
				got[e.Agent]++
				e.Seq, e.Time, e.Raw, e.Agent = events[0].Seq, events[0].Time, nil, "a"
				events[0].Raw = nil
				require.Equal(t, events[0], e)
			}
			assert.Equal(t, map[string]int{"a": 401, "b": 400}, got)
			if name == "there" {
				require.NoError(t, process.cmd.Process.Kill())
				require.Eventually(t, func() bool {
					_, err := a.Append(noCtx, own())
					return err == nil
				}, 10*time.Second, time.Millisecond)
			}
			seq, err := a.Append(noCtx, own())
			require.NoError(t, err)
			next, err := l.Append(noCtx, own())
			require.NoError(t, err)
			assert.Equal(t, seq+1, next)
			require.NoError(t, l.Close())
			_, err = a.Append(noCtx, own())
			assert.ErrorIs(t, err, os.ErrClosed)
		})
	}
}

// attacker has the channel of agent a.
type attacker struct {
	*os.File
	in *peer.Reader
}

// answer returns the answer to what the attacker has sent; io.EOF: the channel has ended.
func (c attacker) answer(t *testing.T) (a answer, err error) {
	require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
	var text []byte
	if err := c.in.Read(&text); err != nil {
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		return a, io.EOF
	}
	require.NoError(t, json.Unmarshal(text, &a))
	return a, nil
}

// attack returns a log of another process, and functions that give an attacker a channel.
func attack(t *testing.T, day int64) (l *Log, dir string, channel func() attacker) {
	start, _ := writers(t)
	dir = t.TempDir()
	l, err := Start(start, dir, Options{Retry: 10 * time.Millisecond, Sync: 10 * time.Millisecond, ChannelDay: day})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l, dir, func() attacker {
		conn, err := l.disk.(*remote).dialChannel("a")
		require.NoError(t, err)
		return attacker{conn.(*os.File), peer.NewReader(conn, maxAnswer)}
	}
}

// frame is a message of the attacker's: a length, and text.
func frame(length int, text string) string {
	return string(binary.LittleEndian.AppendUint32(nil, uint32(length))) + text
}

// TestChannelAttack: the holder of agent a's channel cannot write events of agent b, events of the daemon, or lines that the log itself
// would not write. Others append afterwards, and the log has their events alone.
func TestChannelAttack(t *testing.T) {
	l, dir, channel := attack(t, 0)
	uid := uint32(0)
	body := func(change func(*Event)) string {
		e := clean(own())
		change(&e)
		return string(appendBody(nil, e))
	}
	group := func(text string) string { return frame(len(text), text) }
	for name, sent := range map[string]string{
		"of another agent":          group(body(func(e *Event) { e.Agent = "b" })),
		"of nobody":                 group(body(func(e *Event) { e.Agent = "" })),
		"of another in a group":     group(body(func(*Event) {}) + body(func(e *Event) { e.Agent = "b" })),
		"a second name":             group(strings.Replace(body(func(*Event) {}), `"agent":"a"`, `"agent":"a","Agent":"b"`, 1)),
		"of the daemon":             group(body(func(e *Event) { e.Event = KindDaemon })),
		"of the log":                group(body(func(e *Event) { *e = Event{Event: KindAudit, Outcome: OutcomeRemoved, Agent: "a"} })),
		"of a view":                 group(body(func(e *Event) { e.Event = KindView })),
		"of no kind":                group(body(func(e *Event) { e.Event = "" })),
		"a kill":                    group(body(func(e *Event) { e.Event, e.Op = KindSandbox, OpKill })),
		"a grant":                   group(body(func(e *Event) { e.Event, e.Outcome = KindApproval, "granted" })),
		"a question of an operator": group(body(func(e *Event) { e.Event, e.Outcome, e.UID = KindApproval, OutcomeAsked, &uid })),
		"an undo of an operator":    group(body(func(e *Event) { e.Event, e.UID = KindHistory, &uid })),
		"a definition":              group(body(func(e *Event) { e.Event, e.Outcome = KindAgent, "definition changed" })),
		"a newline":                 group(body(func(e *Event) { e.Rule = `x\u000a{"seq":9,"event":"daemon"}` })),
		"a terminal's":              group(strings.Replace(body(func(*Event) {}), `"rule":"r"`, `"rule":"\u001b]0;"`, 1)),
		"no UTF-8":                  group(strings.Replace(body(func(*Event) {}), `"rule":"r"`, "\"rule\":\"\\\\\xff\"", 1)),
		"a lone backslash":          group(body(func(e *Event) { e.Rule = `\` })),
		"a wrong cut":               group(body(func(e *Event) { e.Rule = `\cut{x}` })),
		"a long text":               group(body(func(e *Event) { e.Rule = strings.Repeat("r", maxText+1) })),
		"a long path":               group(body(func(e *Event) { e.Path = strings.Repeat("r", maxPath+1) })),
		"many scopes":               group(body(func(e *Event) { e.Context = make([]Scope, maxScopes+1) })),
		"a number":                  group(strings.Replace(body(func(*Event) {}), `"rule":"r"`, `"seq":1e400`, 1)),
		"a year of five digits":     group(strings.Replace(body(func(*Event) {}), `"rule":"r"`, `"decided":"9999-12-31T23:59:59-23:59"`, 1)),
		"of a spool":                group(body(func(e *Event) { e.Decided = time.Now() })),
		"an unknown key":            group(strings.Replace(body(func(*Event) {}), `"rule":"r"`, `"salt":"r"`, 1)),
		"two values":                group(strings.TrimSpace(body(func(*Event) {})) + "{}\n"),
		"half a line":               group(body(func(*Event) {})[:20]),
		"no line":                   group(""),
		"newlines":                  group("\n\n"),
		"a message of the daemon":   group(`{"dir":"/tmp","opts":{}}`),
		"too large":                 frame(maxChannel+1, strings.Repeat("x", maxChannel+1)),
		"the largest":               frame(1<<32-1, ""),
		"half a message":            frame(100, "x"),
		"half a length":             "\x01",
	} {
		t.Run(name, func(t *testing.T) {
			c := channel()
			defer c.Close()
			_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second))
			_, err := c.WriteString(sent)
			if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
				return // the log has read what it needed to
			}
			require.NoError(t, err)
			fd, err := descriptors.Numbers(c.File)
			require.NoError(t, err)
			require.NoError(t, unix.Shutdown(fd[0], unix.SHUT_WR))
			if a, err := c.answer(t); err == nil {
				assert.NotEmpty(t, a.Refused)
				assert.Zero(t, a.First)
			}
		})
	}
	require.NoError(t, l.Err())
	add(t, l, 1)
	assert.Len(t, all(t, dir), 1)
}

// TestChannelRefusal: an event that a channel must not write fails, and neither the log nor the next event does.
func TestChannelRefusal(t *testing.T) {
	l, dir, _ := attack(t, 0)
	c := l.Channel("a")
	_, err := c.Append(noCtx, Event{Event: KindFile, Agent: "b"})
	require.ErrorIs(t, err, ErrRefused)
	assert.EqualError(t, err, "append to log: not an event that this channel may write: an event of \"b\" on the channel of a")
	require.NoError(t, l.Err())
	_, err = c.Append(noCtx, own())
	require.NoError(t, err)
	assert.Len(t, all(t, dir), 1)
}

// TestChannelFlood: attackers that write as fast as they can delay nobody else, whether they read answers or not.
func TestChannelFlood(t *testing.T) {
	l, _, channel := attack(t, 0)
	e := clean(own())
	e.Path = "p"
	one := string(appendBody(nil, e))
	large := strings.Repeat(one, maxChannel/len(one))
	var flooding sync.WaitGroup
	defer flooding.Wait()
	flood := func(text string, reads bool) (began chan struct{}) {
		c := channel()
		t.Cleanup(func() { c.Close() })
		began = make(chan struct{})
		if reads {
			flooding.Go(func() { _, _ = io.Copy(io.Discard, c) })
		}
		flooding.Go(func() {
			start := sync.OnceFunc(func() { close(began) })
			defer start()
			for n := 0; ; n++ {
				_, err := c.WriteString(text)
				if n == 1 && reads {
					start()
				}
				if err != nil {
					return
				}
				if !reads {
					_ = c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond)) // then nobody reads any more: the channel is full
				}
			}
		})
		return began
	}
	for _, text := range []string{frame(len(one), one), frame(len(large), large), frame(len(large), strings.Repeat("\n", len(large))), frame(3, "xxx")} {
		deaf, reads := flood(text, false), flood(text, true)
		<-reads
		<-deaf
	}
	b, began := l.Channel("b"), time.Now()
	for i := range 100 {
		_, err := b.Append(noCtx, Event{Event: KindCall, Agent: "b", Detail: fmt.Sprint(i)})
		require.NoError(t, err)
	}
	add(t, l, 100)
	t.Logf("200 events took %v", time.Since(began))
	assert.Less(t, time.Since(began), 30*time.Second, "a channel that is full holds the others up")
	require.NoError(t, l.Close())
}

// TestAttackChannelFills: the holder of agent a's channels writes as much as it can. The log has no more of a's events than they may
// have in a day, so that retention by size removes nobody's for them. It says once that it refuses, a's next change is refused, and
// others append as before.
func TestAttackChannelFills(t *testing.T) {
	const day = 256 << 10
	l, dir, channel := attack(t, day)
	group := strings.Repeat(string(appendBody(nil, clean(own()))), 20)
	refused := 0
	for range 2 {
		c := channel()
		for range 40 {
			_, err := c.WriteString(frame(len(group), group))
			require.NoError(t, err)
			a, err := c.answer(t)
			require.NoError(t, err)
			if a.Refused != "" {
				refused++
				assert.Contains(t, a.Refused, "a day")
			}
		}
		c.Close()
	}
	require.Greater(t, 80*len(group), 4*day)
	a, err := l.Channel("a"), error(nil)
	for range day / 50 { // until the rest is used up
		if _, err = a.Append(noCtx, Event{Event: KindCall, Agent: "a"}); err != nil {
			break
		}
	}
	require.ErrorIs(t, err, ErrRefused)
	_, err = l.Channel("b").Append(noCtx, Event{Event: KindFile, Agent: "b"})
	require.NoError(t, err)
	require.NoError(t, l.Err())
	told := func() (told []Event, bytes int) {
		for _, e := range all(t, dir) {
			if e.Event == KindAudit && e.Outcome == OutcomeRefused {
				told = append(told, e)
			} else if e.Agent == "a" {
				bytes += len(e.Raw)
			}
		}
		return told, bytes
	}
	require.Eventually(t, func() bool { told, _ := told(); return len(told) == 1 }, 10*time.Second, time.Millisecond, "one event")
	require.NoError(t, l.Close())
	events, bytes := told()
	assert.Less(t, bytes, 2*day+day/2, "with numbers and times")
	require.Len(t, events, 2, "the second at the end, with the rest")
	sum := 0
	for _, e := range events {
		var n, size int
		_, err := fmt.Sscanf(e.Detail, "%d events of %d bytes", &n, &size)
		require.NoError(t, err)
		assert.Equal(t, "a", e.Agent)
		sum += n
	}
	assert.Equal(t, 20*refused+1, sum)
}

// TestChannelDay: what a channel may write in a day is earned over a day, and never more than that at once.
func TestChannelDay(t *testing.T) {
	s, now := &store{opts: Options{ChannelDay: 2400}, budgets: map[string]*budget{}}, time.Now()
	take := func(n int, agent string) bool { return s.admit(agent, make([]byte, n), now) == nil }
	assert.True(t, take(4800, "a"))
	assert.False(t, take(1, "a"))
	assert.True(t, take(4800, "b"))
	now = now.Add(time.Hour)
	assert.True(t, take(100, "a"))
	assert.False(t, take(1, "a"))
	assert.Len(t, s.remarks, 2, "one an hour")
	now = now.Add(-time.Hour) // the clock was set back
	assert.False(t, take(1, "a"))
	now = now.Add(99 * time.Hour)
	assert.False(t, take(4801, "a"))
	assert.True(t, take(4800, "a"))
}

// TestChannelDayIsRepaid: events that a failing log did not take cost nothing, and an agent that has gone leaves nothing.
func TestChannelDayIsRepaid(t *testing.T) {
	dir, event := t.TempDir(), appendBody(nil, clean(own()))
	s, err := openStore(dir, Options{ChannelDay: int64(len(event))}.complete(), func(report) {})
	require.NoError(t, err)
	c := s.channel("a")
	_, err = c.append(event)
	require.NoError(t, err)
	left := s.budgets["a"].left
	require.NoError(t, os.Rename(dir, dir+"-gone"))
	require.NoError(t, os.WriteFile(dir, nil, 0o600))
	for range 100 {
		_, err = c.append(event)
		require.Error(t, err)
		require.NotErrorIs(t, err, ErrRefused)
	}
	assert.InDelta(t, left, s.budgets["a"].left, 10)
	require.NoError(t, os.Remove(dir))
	require.NoError(t, os.Rename(dir+"-gone", dir))
	_, err = c.append(event)
	require.NoError(t, err, "and the log works again")
	_, err = c.append(event)
	require.ErrorIs(t, err, ErrRefused)
	s.tellRest(time.Now().Add(47*time.Hour), false)
	assert.Len(t, s.budgets, 1)
	s.tellRest(time.Now().Add(49*time.Hour), false)
	assert.Empty(t, s.budgets)
	require.NoError(t, s.close())
}
