package mcp

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/limit"
)

const handshake = `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}` + "\n"

// progressOf is a notification with so many bytes.
func progressOf(size int) string {
	return `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"` + strings.Repeat("y", size) + `","progress":1}}` + "\n"
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestNotificationsAreNotQueued: initialize waits for a client that does not read. Notifications behind it take no memory,
// and its end ends the session.
func TestNotificationsAreNotQueued(t *testing.T) {
	b := newBench(t, "", nil)
	b.face.opt.Inbox = NewInbox(tools.NewShare()) // without the messages of the client of newBench
	before := len(slices.Collect(b.face.server.Sessions()))
	ours, theirs := net.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- b.face.Serve(t.Context(), ours) }()
	_, err := io.WriteString(theirs, handshake)
	require.NoError(t, err)
	one := progressOf(1 << 20)
	began := heap()
	for range 50 {
		_, err := io.WriteString(theirs, one)
		require.NoError(t, err)
	}
	assert.Less(t, int64(heap()-began)>>20, int64(16+16+4), "MiB of 50, with the buffer of one message, and of the one before while the collector has it")
	theirs.Close()
	require.NoError(t, <-ended)
	assert.Len(t, slices.Collect(b.face.server.Sessions()), before)
	assert.Zero(t, b.face.opt.Inbox.held.Held())
}

// TestMessagesHaveAPlace: the SDK has maxOpen messages of a client at most, notifications among them. A request with an id
// that is in flight is answered at once.
func TestMessagesHaveAPlace(t *testing.T) {
	ours, theirs := net.Pipe()
	l := newLines(ours, NewInbox(tools.NewShare()), func(int) (func(), bool) { return func() {}, true })
	read := make(chan jsonrpc.Message, 2*maxOpen)
	go func() {
		defer close(read)
		for {
			m, err := l.Read(context.Background())
			if err != nil {
				return
			}
			read <- m
		}
	}()
	send := func(text string) {
		_, err := io.WriteString(theirs, text+"\n")
		require.NoError(t, err)
	}
	send(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	send(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	line, err := bufio.NewReader(theirs).ReadString('\n')
	require.NoError(t, err)
	assert.JSONEq(t, `{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"a request with this id is in flight"}}`, line)
	for range maxOpen - 1 {
		send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`) // not in flight: the SDK does not get it
		send(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
	}
	for range maxOpen {
		<-read
	}
	send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	assert.Len(t, l.open, maxOpen)
	assert.Empty(t, read)
	for src := range l.sources.all {
		src.free()
		break
	}
	assert.Equal(t, initialized, (<-read).(*jsonrpc.Request).Method)
	l.Close()
	<-read
	l.freeAll()
	assert.Empty(t, l.open)
	assert.Zero(t, l.inbox.held.Held())
}

// TestLongMessagesTakeTurns: of an agent's clients one at a time sends a long message.
func TestLongMessagesTakeTurns(t *testing.T) {
	inbox := NewInbox(tools.NewShare())
	var theirs []net.Conn
	read := make(chan int, 2)
	text := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"x":%q}}`, strings.Repeat("y", 4*shortMessage))
	for i := range 2 {
		ours, his := net.Pipe()
		defer his.Close()
		theirs = append(theirs, his)
		l := newLines(ours, inbox, func(int) (func(), bool) { return func() {}, true })
		defer l.Close()
		go func() {
			m, err := l.Read(context.Background())
			if r, ok := m.(*jsonrpc.Request); ok && assert.NoError(t, err) && assert.Len(t, r.Params, len(text)-len(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":}`)) {
				read <- i
			}
		}()
	}
	_, err := io.WriteString(theirs[0], text[:3*shortMessage])
	require.NoError(t, err)
	written := make(chan error, 1)
	go func() {
		_, err := io.WriteString(theirs[1], text+"\n")
		written <- err
	}()
	require.NoError(t, theirs[0].SetWriteDeadline(time.Now().Add(time.Minute)))
	_, err = io.WriteString(theirs[0], text[3*shortMessage:])
	require.NoError(t, err)
	assert.Empty(t, read, "neither is complete")
	_, err = io.WriteString(theirs[0], "\n")
	require.NoError(t, err)
	assert.ElementsMatch(t, []int{0, 1}, []int{<-read, <-read})
	require.NoError(t, <-written)
}

// TestClientsThatLeaveTakeNoTime: of messages that wait for the rate, those whose clients are gone delay no other client.
func TestClientsThatLeaveTakeNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inbox := NewInbox(tools.NewShare())
		gone, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 1000 {
			all.Go(func() {
				if done, err := inbox.turn(gone, shortMessage); err == nil {
					done()
				}
			})
		}
		synctest.Wait()
		leave()
		all.Wait()
		began := time.Now()
		_, err := inbox.turn(t.Context(), 10)
		require.NoError(t, err)
		assert.Less(t, time.Since(began), time.Second)
	})
}

// TestLongMessagesThatStall: a client that does not complete a long message has its turn until another one has waited for
// turnTime, and the other one's message is read, by its socket and over HTTP.
func TestLongMessagesThatStall(t *testing.T) {
	for _, web := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			inbox := NewInbox(tools.NewShare())
			text := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"x":%q}}`, strings.Repeat("y", 4*shortMessage))
			var all sync.WaitGroup
			began := time.Now()
			for range 3 {
				ours, theirs := net.Pipe()
				l := newLines(ours, inbox, func(int) (func(), bool) { return func() {}, true })
				defer l.Close()
				all.Go(func() {
					_, err := l.Read(context.Background())
					assert.ErrorIs(t, err, errSlow)
				})
				_, err := io.WriteString(theirs, text[:shortMessage])
				require.NoError(t, err)
				all.Go(func() { _, _ = io.WriteString(theirs, text[shortMessage:2*shortMessage]) })
				synctest.Wait()
			}
			if web {
				late := time.Time{}
				got, release, err := inbox.readBody(t.Context(), strings.NewReader(text), func(at time.Time) { late = at })
				require.NoError(t, err)
				assert.Equal(t, text, string(got))
				assert.Equal(t, longTime, time.Until(late), "what the client had for its body begins with its turn")
				release()
			} else {
				ours, theirs := net.Pipe()
				l := newLines(ours, inbox, func(int) (func(), bool) { return func() {}, true })
				defer l.Close()
				go func() { _, _ = io.WriteString(theirs, text+"\n") }()
				m, err := l.Read(context.Background())
				require.NoError(t, err)
				assert.Equal(t, "tools/call", m.(*jsonrpc.Request).Method)
			}
			assert.LessOrEqual(t, time.Since(began), 3*turnTime)
			all.Wait()
		})
	}
}

// TestNotificationsOverHTTP: the SDK gets those that it needs, and as many of a session as it may have.
func TestNotificationsOverHTTP(t *testing.T) {
	b := newBench(t, "", nil)
	b.face.opt.Inbox = NewInbox(tools.NewShare()) // without the messages of the client of newBench
	s := httptest.NewServer(Handler(func(*http.Request) (*Face, int) { return b.face, 0 }))
	defer s.Close()
	session := ""
	post := func(text string) int {
		t.Helper()
		r, err := http.NewRequest(http.MethodPost, s.URL, strings.NewReader(text))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		if session != "" {
			r.Header.Set(sessionHeader, session)
		}
		res, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer res.Body.Close()
		_, _ = io.Copy(io.Discard, res.Body)
		session = res.Header.Get(sessionHeader) + session
		return res.StatusCode
	}
	cancel := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`
	require.Equal(t, http.StatusOK, post(handshake))
	assert.Equal(t, http.StatusAccepted, post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`))
	handled := func() bool {
		b.face.notes.mu.Lock()
		defer b.face.notes.mu.Unlock()
		return len(b.face.notes.of) == 0
	}
	for i := range 2 * maxNotes {
		require.Equal(t, http.StatusAccepted, post(cancel))
		if i%(maxNotes/2) == 0 { // the SDK may be behind
			require.Eventually(t, handled, 10*time.Second, time.Millisecond)
		}
	}
	assert.Equal(t, http.StatusAccepted, post(progressOf(2*shortMessage)))
	assert.Equal(t, http.StatusBadRequest, post("["+cancel+","+cancel+"]"), "a batch")
	require.Eventually(t, handled, 10*time.Second, time.Millisecond)
	for range maxNotes { // as if the SDK had them
		require.True(t, b.face.notes.add(session))
	}
	assert.Equal(t, http.StatusBadRequest, post(cancel))
	assert.Equal(t, http.StatusAccepted, post(progressOf(10)), "it needs none of these")
	assert.Equal(t, http.StatusOK, post(`{"jsonrpc":"2.0","id":2,"method":"ping"}`))
	require.Eventually(t, func() bool { return b.face.opt.Inbox.held.Held() == 0 }, 10*time.Second, time.Millisecond)
}

// TestCallsBesideTheirArguments: what calls have beside their arguments takes no memory without a bound while they run. A call
// with little of it is not refused.
func TestCallsBesideTheirArguments(t *testing.T) {
	b := newBench(t, "", nil)
	inbox := NewInbox(tools.NewShare()) // without the messages of the client of newBench
	b.face.opt.Inbox = inbox
	ours, theirs := net.Pipe()
	defer theirs.Close()
	go func() { _ = b.face.Serve(t.Context(), ours) }()
	lines := bufio.NewReader(theirs)
	send := func(text string) string {
		_, err := io.WriteString(theirs, text)
		require.NoError(t, err)
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		return line
	}
	call := func(beside int) string {
		return send(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_file","arguments":{"path":"a"},"_meta":{"x":%q}}}`+"\n",
			strings.Repeat("y", beside)))
	}
	send(handshake)
	assert.Contains(t, call(2*shortMessage), "text of a")
	end, err := inbox.call(maxRest, 0, func() {}) // of calls that run
	require.NoError(t, err)
	assert.Contains(t, call(2*shortMessage), errRest.Message)
	assert.Contains(t, call(10), "text of a")
	end()
	assert.Contains(t, call(2*shortMessage), "text of a")
	assert.Zero(t, inbox.rest.Held())
}

// TestMessagesInTurn: messages of one agent are parsed one after another, whichever clients send them: until a call begins, and at most
// readTime. What is not for the SDK ends its turn at once.
func TestMessagesInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inbox := NewInbox(tools.NewShare())
		began := time.Now()
		client := func(text string) (*lines, *jsonrpc.Request) {
			ours, theirs := net.Pipe()
			l := newLines(ours, inbox, func(int) (func(), bool) { return func() {}, true })
			t.Cleanup(func() { l.Close(); theirs.Close() })
			go func() { _, _ = io.Copy(io.Discard, theirs) }()
			go func() { _, _ = io.WriteString(theirs, text) }()
			m, err := l.Read(context.Background())
			require.NoError(t, err)
			return l, m.(*jsonrpc.Request)
		}
		const call = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}` + "\n"
		first, r := client(call)
		assert.Zero(t, time.Since(began))
		time.AfterFunc(readTime/2, func() { first.sources.byID[r.ID].read() })
		second, r := client(call)
		assert.Equal(t, readTime/2, time.Since(began), "the first one's call has begun")
		time.AfterFunc(readTime/2, func() { second.take(r.ID).free() })
		_, _ = client(call)
		assert.Equal(t, readTime, time.Since(began), "the second one has its answer")
		_, _ = client(progressOf(10) + "no message\n" + call)
		assert.Equal(t, 2*readTime, time.Since(began), "the third one's call does not begin")
	})
}

// TestRepeatedIDsArePaced: requests with the id of one in flight are answered no faster than messages that are no calls.
func TestRepeatedIDsArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		l := newLines(ours, NewInbox(tools.NewShare()), func(int) (func(), bool) { return func() {}, true })
		defer l.Close()
		began := time.Now()
		const refused = 500 // each takes a millisecond, of 20 at once and 200 a second
		go func() {
			_, _ = io.WriteString(theirs, strings.Repeat(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}`+"\n", 1+refused))
		}()
		var took time.Duration
		go func() {
			in := bufio.NewScanner(theirs)
			for range refused {
				assert.True(t, in.Scan())
				assert.Contains(t, in.Text(), errInFlight.Error())
			}
			took = time.Since(began)
			theirs.Close()
		}()
		_, err := l.Read(context.Background())
		require.NoError(t, err)
		_, err = l.Read(context.Background())
		require.ErrorIs(t, err, io.EOF)
		assert.InDelta(t, 2.45, took.Seconds(), 0.1)
	})
}

// TestInvalidCallsArePaced: calls whose arguments the door or the SDK refuses take more of the agent's share of a processor than others,
// by their size.
func TestInvalidCallsArePaced(t *testing.T) {
	b := newBench(t, "", nil)
	share := limit.NewShare(time.Microsecond, time.Hour) // it earns nothing meanwhile
	b.face.opt.Inbox = NewInbox(share)
	ours, theirs := net.Pipe()
	defer theirs.Close()
	go func() { _ = b.face.Serve(t.Context(), ours) }()
	in := bufio.NewReader(theirs)
	ask := func(text string) string {
		_, err := io.WriteString(theirs, text)
		require.NoError(t, err)
		line, err := in.ReadString('\n')
		require.NoError(t, err)
		return line
	}
	ask(handshake)
	call := func(path string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_file","arguments":{"path":%s}}}`+"\n", path)
	}
	spends := func(text string, times int) (answer string) {
		t.Helper()
		left := share.Spend(0)
		answer = ask(text)
		var tally tools.Tally
		require.NoError(t, tally.Add([]byte(text)))
		cost := time.Duration(times) * tally.Time()
		assert.Eventually(t, func() bool { return left-cost-share.Spend(0) < cost/100 }, time.Minute, time.Millisecond, "%v of %v", left-share.Spend(0), cost)
		assert.InEpsilon(t, cost, left-share.Spend(0), 0.05)
		return answer
	}
	assert.Contains(t, spends(call(`"f"`), 1), "text of f")
	assert.Contains(t, spends(call(`["`+strings.Repeat("y", 60000)+`"]`), 1+refusedTimes), `\"code\":\"invalid\"`)
	refused := spends(call(strings.Repeat("[", 3000)+strings.Repeat("]", 3000)), 1+refusedTimes)
	assert.Contains(t, refused, `"error":{"code":-32602`)
	assert.Less(t, len(refused), 2*maxError, "without what was refused")
	assert.Contains(t, spends(call(`"f"`), 1), "text of f")
}

// TestRoomOfLargeMessages: the process has a limit of its memory while it has large messages, and its own one after the last.
func TestRoomOfLargeMessages(t *testing.T) {
	idle := func() bool {
		room.mu.Lock()
		defer room.mu.Unlock()
		return room.messages == 0
	}
	require.Eventually(t, idle, 20*time.Second, time.Millisecond, "of the tests before")
	own := debug.SetMemoryLimit(-1)
	var ends []func()
	for n := range int64(2) {
		text, end, err := NewInbox(nil).readBody(t.Context(), strings.NewReader(strings.Repeat("y", 2*largeMessage)), func(time.Time) {})
		require.NoError(t, err)
		assert.Len(t, text, 2*largeMessage)
		assert.Equal(t, room.before+(n+1)*largeRoom, debug.SetMemoryLimit(-1))
		ends = append(ends, end)
	}
	for _, end := range ends {
		end()
	}
	require.Eventually(t, idle, 20*time.Second, time.Millisecond)
	assert.Equal(t, own, debug.SetMemoryLimit(-1))
	_, end, err := NewInbox(nil).readBody(t.Context(), strings.NewReader(strings.Repeat("y", largeMessage)), func(time.Time) {})
	require.NoError(t, err)
	assert.Equal(t, own, debug.SetMemoryLimit(-1), "it is not large")
	end()
}
