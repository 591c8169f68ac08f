package bridge

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSessionGoesOn(t *testing.T) {
	s, d := greeted(t, nil)
	s.says(call("1"))
	s.says(call(`"two"`))
	d.gets(call("1"))
	d.gets(call(`"two"`))
	d.says(result("1"))
	s.gets(result("1"))
	s.says(call("3.0"))
	d.gets(call("3.0"))
	d.says(result("3"))
	s.gets(result("3"))
	_, _ = io.WriteString(d, `{"jsonrpc":"2.0","id":"two","resu`) // and dies
	d.Close()
	id, effect := s.failed()
	assert.Equal(t, []string{`"two"`, "unknown"}, []string{id, effect}, "half an answer is none")
	assert.Equal(t, "warning", s.message())
	s.says(call("4"))
	d = s.daemon()
	d.gets(helloLine)
	d.says(changedLine) // before the session is restored: not relayed
	d.says(welcomeLine)
	d.gets(readyLine)
	d.gets(call("4")) // and no other message: no call is sent twice
	assert.Equal(t, "notice", s.message())
	s.gets(changedLine)
	d.says(result("4"))
	s.gets(result("4"))
	d.Close() // no request in flight
	assert.Equal(t, "warning", s.message())
	s.restored()
	assert.Equal(t, "notice", s.message())
	s.gets(changedLine)
	assert.NoError(t, s.end())
	assert.Contains(t, s.log.String(), "connected to the daemon again")
}

// The client learns whether its sandbox is the same, and does not get the daemon's notification.
func TestSandboxOfTheNext(t *testing.T) {
	const private, same = "notifications/own", `"same"`
	s, d := greeted(t, func(b *Bridge) {
		b.Private, b.Sandbox = private, func(line []byte) bool { return strings.Contains(string(line), same) }
	})
	for _, want := range []string{same, `"other"`} {
		d.Close()
		assert.Equal(t, "warning", s.message())
		d = s.daemon()
		d.says(fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":{"sandbox":%s}}`, private, want))
		d.gets(helloLine)
		d.says(welcomeLine)
		d.gets(readyLine)
		assert.Equal(t, want == same, strings.Contains(s.line(), "in the same sandbox"))
		s.gets(changedLine)
	}
	s.answered(d, "1")
	assert.NoError(t, s.end())
}

// The bridge repeats the client's log level.
func TestLevelIsRepeated(t *testing.T) {
	s, d := greeted(t, nil)
	const set = `{"jsonrpc":"2.0","id":%s,"method":"logging/setLevel","params":{"level":"error"}}`
	s.says(fmt.Sprintf(set, "7"))
	d.gets(fmt.Sprintf(set, "7"))
	d.says(result("7"))
	s.gets(result("7"))
	d.Close()
	d = s.restored()
	d.gets(fmt.Sprintf(set, `"scopefs-level"`))
	d.says(result(`"scopefs-level"`))
	s.gets(changedLine)
	s.answered(d, "8")
	assert.NoError(t, s.end())
}

// A response to a request of one daemon does not reach another daemon.
func TestQuestionsOfTheDead(t *testing.T) {
	s, d := greeted(t, nil)
	const question, answer = `{"jsonrpc":"2.0","id":%s,"method":"elicitation/create","params":{"message":"%s"}}`, `{"jsonrpc":"2.0","id":%s,"result":{"action":"accept"}}`
	d.says(fmt.Sprintf(question, "1", "may I?"))
	s.gets(fmt.Sprintf(question, `"scopefs-1"`, "may I?"))
	s.says(fmt.Sprintf(answer, `"scopefs-1"`))
	d.gets(fmt.Sprintf(answer, "1"))
	d.says(fmt.Sprintf(question, "2", "and this?"))
	s.gets(fmt.Sprintf(question, `"scopefs-2"`, "and this?"))
	d.Close()
	assert.Contains(t, s.line(), `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"reason":"the connection to the daemon is lost","requestId":"scopefs-2"}}`)
	assert.Equal(t, "warning", s.message())
	d = s.restored()
	assert.Equal(t, "notice", s.message())
	s.gets(changedLine)
	d.says(fmt.Sprintf(question, "2", "delete all?"))
	s.gets(fmt.Sprintf(question, `"scopefs-3"`, "delete all?"))
	s.says(fmt.Sprintf(answer, `"scopefs-2"`)) // after its daemon is gone
	s.says(fmt.Sprintf(answer, "2"))           // an ID that was never used
	s.says(fmt.Sprintf(answer, `"scopefs-3"`))
	d.gets(fmt.Sprintf(answer, "2"))
	s.answered(d, "5")
	assert.NoError(t, s.end())
}

// A message that comes while held ones are being sent is sent after them: the response to a
// question of that daemon, the cancellation of a request that was held. None is for the next
// daemon.
func TestAnswersWhileSending(t *testing.T) {
	const question, answer = `{"jsonrpc":"2.0","id":7,"method":"elicitation/create"}`, `{"jsonrpc":"2.0","id":"scopefs-1","result":{}}`
	const call, cancel = `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`
	for _, lost := range []bool{false, true} {
		s := session{open: map[string]request{}, serverRequests: map[string]jsonID{}}
		message := func(line string) (message, []byte) {
			m, ok := parse([]byte(line))
			require.True(t, ok)
			return m, []byte(line)
		}
		sent := func() (lines []string) {
			for _, q := range s.take() {
				if line := s.send(q.message, q.line); line != nil {
					lines = append(lines, string(line))
				}
			}
			return lines
		}
		hold := func(line string) {
			m, text := message(line)
			assert.Nil(t, s.hold(m, text, time.Now()))
		}
		hold(call)
		assert.Equal(t, []string{call}, sent())
		assert.NotNil(t, s.receive(message(question)))
		hold(answer)
		hold(cancel)
		if lost {
			s.lose(whyLost, false)
			assert.Equal(t, []string{cancel}, sent(), "which the next daemon ignores")
			continue
		}
		assert.Equal(t, []string{`{"jsonrpc":"2.0","id":7,"result":{}}`, cancel}, sent())
	}
}

// A client of 2026-07-28 has subscriptions and no initialize.
func TestSubscriptionsAreRepeated(t *testing.T) {
	s := newStage(t, nil)
	d := s.daemon()
	const listen = `{"jsonrpc":"2.0","id":2,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true}}}`
	const acked = `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{}}`
	s.says(listen)
	d.gets(listen)
	d.says(acked)
	s.gets(acked)
	d.Close()
	d = s.daemon()
	d.gets(listen)
	d.says(acked)
	s.gets(acked)
	s.gets(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":2}}}`)
	assert.NoError(t, s.end())
}

// TestSubscriptionCancelled: a subscription that is cancelled while there is no daemon, or that the daemon has not ended when it is
// lost, has its response. The next daemon does not get it.
func TestSubscriptionCancelled(t *testing.T) {
	const listen = `{"jsonrpc":"2.0","id":2,"method":"subscriptions/listen","params":{}}`
	const cancel = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`
	for _, name := range []string{"without a daemon", "before its end", "before it was sent"} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, nil)
			d := s.daemon()
			if name != "before it was sent" {
				s.says(listen)
				d.gets(listen)
			}
			d.says(`{"jsonrpc":"2.0","method":"x"}`)
			s.gets(`{"jsonrpc":"2.0","method":"x"}`)
			if name == "before its end" {
				s.says(cancel)
				d.gets(cancel)
			}
			s.down.Store(true)
			d.Close()
			switch name {
			case "without a daemon":
				s.says(cancel)
			case "before it was sent":
				s.says(listen)
				s.says(cancel)
			}
			id, effect := s.failed()
			assert.Equal(t, []string{"2", "none"}, []string{id, effect})
			s.down.Store(false)
			d = s.daemon()
			s.answered(d, "4")
			assert.NoError(t, s.end())
		})
	}
}

func TestIDs(t *testing.T) {
	same := [][]string{{`1`, `1.0`, ` 1`, `10e-1`}, {`"1"`}, {`"a\u0062"`, `"ab"`}, {`1.5`}, {`123456789012345678901234567890`}, {`123456789012345678901234567891`}, {`-1`}}
	seen := map[string]int{}
	for i, texts := range same {
		for _, text := range texts {
			m, ok := parse([]byte(`{"jsonrpc":"2.0","id":` + text + `,"result":{"id":7}}`))
			require.True(t, ok, text)
			require.True(t, m.response(), text)
			if j, again := seen[m.key()]; again {
				assert.Equal(t, i, j, text)
			}
			seen[m.key()] = i
		}
	}
	assert.Len(t, seen, len(same))
	for _, text := range []string{`{"jsonrpc":"2.0","id":null,"error":{}}`, `{"jsonrpc":"2.0","method":"x"}`} {
		m, ok := parse([]byte(text))
		assert.True(t, ok, text)
		assert.False(t, m.request() || m.response(), text)
	}
	m, ok := parse([]byte(`{"jsonrpc":"2.0","id":4,"method":"roots/list"}`))
	assert.True(t, ok && m.request())
	for _, text := range []string{`{"jsonrpc":"2.0","id":4x,"result":{}}`, `{"jsonrpc":"2.0","id":4,"id":5,"method":"x"}`, `{}`} {
		_, ok = parse([]byte(text))
		assert.False(t, ok, text)
	}
}

// TestCancelledGetsNoResponse: a request that the client has cancelled gets no response when its daemon is lost, and no next one resumes it.
func TestCancelledGetsNoResponse(t *testing.T) {
	s, d := greeted(t, nil)
	cancel := func(id string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`, id)
	}
	for _, id := range []string{"1", `"two"`, "3"} {
		s.says(call(id))
		d.gets(call(id))
	}
	for _, id := range []string{"1", `"two"`} {
		s.says(cancel(id))
		d.gets(cancel(id))
	}
	d.says(result("3"))
	s.gets(result("3"))
	d.Close() // which has ended neither 1 nor "two"
	assert.Equal(t, "warning", s.message())
	s.restored()
	assert.Equal(t, "notice", s.message())
	s.gets(changedLine)
	assert.NoError(t, s.end())
}
