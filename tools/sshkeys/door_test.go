package sshkeys

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha512"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/sshkeys/message"
)

// lab is a door before an agent with two keys, of which the rules name the first.
type lab struct {
	named, other ssh.Signer
	host         ssh.Signer
	hosts        []string // that host is
	rule         scope.Decision
	approve      func(Question) error
	failure      error // of the log

	mu     sync.Mutex
	events []audit.Event
	door   *Door
}

func signer(t *testing.T) (ssh.Signer, ed25519.PrivateKey) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	s, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	return s, private
}

func newLab(t *testing.T) *lab {
	l := &lab{hosts: []string{"git.example"}, rule: scope.Decision{Allow: true, Rule: "allow"}}
	l.host, _ = signer(t)
	keys := agent.NewKeyring()
	for _, to := range []*ssh.Signer{&l.named, &l.other} {
		s, private := signer(t)
		require.NoError(t, keys.Add(agent.AddedKey{PrivateKey: private, Comment: "/home/me/.ssh/id"}))
		*to = s
	}
	l.door = New(Tenant{
		Decide: func(name string) scope.Decision {
			l.mu.Lock()
			defer l.mu.Unlock()
			if name == ssh.FingerprintSHA256(l.named.PublicKey()) {
				return l.rule
			}
			return scope.Decision{Rule: "ssh_keys"}
		},
		Dial: func(context.Context) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() { _ = agent.ServeAgent(keys, theirs) }()
			return ours, nil
		},
		Hosts: func(key ssh.PublicKey) []string {
			if Fingerprint(key) == Fingerprint(l.host.PublicKey()) {
				return l.hosts
			}
			return nil
		},
		Record: func(_ context.Context, e audit.Event) error {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.events = append(l.events, e)
			return l.failure
		},
		Approve: func(_ context.Context, q Question) error { return l.approve(q) },
	})
	return l
}

// connection is a client's.
type connection struct {
	t *testing.T
	net.Conn
}

func (l *lab) connect(t *testing.T) connection {
	ours, theirs := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer theirs.Close()
		l.door.serve(t.Context(), theirs)
	}()
	t.Cleanup(func() { ours.Close(); <-done })
	return connection{t, ours}
}

// ask sends a request and returns the answer.
func (c connection) ask(kind byte, body []byte) []byte {
	c.t.Helper()
	require.NoError(c.t, c.SetDeadline(time.Now().Add(time.Minute)))
	all := binary.BigEndian.AppendUint32(nil, uint32(len(body)+1))
	_, err := c.Write(append(append(all, kind), body...))
	require.NoError(c.t, err)
	var head [4]byte
	_, err = io.ReadFull(c, head[:])
	require.NoError(c.t, err)
	answer := make([]byte, binary.BigEndian.Uint32(head[:]))
	_, err = io.ReadFull(c, answer)
	require.NoError(c.t, err)
	return answer
}

func (c connection) extend(name string, contents any) []byte {
	return c.ask(message.Extension, ssh.Marshal(extensionMessage{name, ssh.Marshal(contents)}))
}

func (c connection) bind(host ssh.Signer, id string, forwarding bool) bool {
	signature, err := host.Sign(rand.Reader, []byte(id))
	require.NoError(c.t, err)
	m := bindMessage{host.PublicKey().Marshal(), []byte(id), ssh.Marshal(signature), forwarding}
	return c.extend(bindExtension, m)[0] == success
}

func (c connection) sign(key ssh.PublicKey, data []byte) *ssh.Signature {
	answer := c.ask(signRequest, ssh.Marshal(signMessage{key.Marshal(), data, 0}))
	return signatureOf(c.t, answer)
}

func signatureOf(t *testing.T, answer []byte) *ssh.Signature {
	if answer[0] != message.SignResponse {
		assert.Equal(t, []byte{failure}, answer)
		return nil
	}
	var of struct{ Signature []byte }
	var signature ssh.Signature
	require.NoError(t, ssh.Unmarshal(answer[1:], &of))
	require.NoError(t, ssh.Unmarshal(of.Signature, &signature))
	return &signature
}

func loginOf(key ssh.PublicKey, id, method string, rest ...[]byte) []byte {
	u := userauth{Session: []byte(id), Request: requestUserauth, User: "git", Service: sshService, Method: method, Signed: true,
		Type: key.Type(), Key: key.Marshal()}
	for _, part := range rest {
		u.Rest = append(u.Rest, ssh.Marshal(struct{ Part []byte }{part})...)
	}
	return ssh.Marshal(u)
}

// last returns the last event.
func (l *lab) last() audit.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.events[len(l.events)-1]
}

// TestLogin: a named key logs in to a host that the agent may connect to, in the session that the connection is bound to, and each use is
// recorded before it. Everything else that the agent protocol could have signed is refused, with the reason.
func TestLogin(t *testing.T) {
	l := newLab(t)
	stranger, _ := signer(t)
	key, host := l.named.PublicKey(), l.host.PublicKey().Marshal()
	c := l.connect(t)
	var list struct {
		Number  uint32
		Blob    []byte
		Comment string
	}
	require.NoError(t, ssh.Unmarshal(c.ask(requestKeys, nil)[1:], &list), "one key")
	assert.Equal(t, uint32(1), list.Number)
	assert.Equal(t, key.Marshal(), list.Blob)
	assert.NotContains(t, list.Comment, "/home/me", "where the key is")

	require.True(t, c.bind(l.host, "one", false))
	for name, data := range map[string][]byte{"plain": loginOf(key, "one", publicKey), "bound": loginOf(key, "one", hostbound, host)} {
		signature := c.sign(key, data)
		require.NotNil(t, signature, name)
		assert.NoError(t, key.Verify(data, signature), name)
		e := l.last()
		assert.Equal(t, audit.Event{Event: audit.KindKey, Op: "login", Target: "git@git.example", Verdict: audit.Allow, Rule: "allow",
			Detail: ssh.FingerprintSHA256(key)}, e)
	}
	require.True(t, c.bind(l.host, "one", false), "once more the same")
	sshsig := func(namespace string) []byte {
		return append([]byte(signatureMagic), ssh.Marshal(struct{ Namespace, Reserved, Hash, Sum string }{namespace, "", "sha512", "x"})...)
	}
	named := func(user string) []byte {
		var u userauth
		require.NoError(t, ssh.Unmarshal(loginOf(key, "one", publicKey), &u))
		u.User = user
		return ssh.Marshal(u)
	}
	for name, test := range map[string]struct {
		key  ssh.PublicKey
		data []byte
		says string
	}{
		"another key":          {l.other.PublicKey(), loginOf(l.other.PublicKey(), "one", publicKey), "is not one of the agent's"},
		"another key's name":   {key, loginOf(l.other.PublicKey(), "one", publicKey), "this is no login"},
		"another session":      {key, loginOf(key, "two", publicKey), "another session"},
		"another host":         {key, loginOf(key, "one", hostbound, stranger.PublicKey().Marshal()), "another host"},
		"no host":              {key, loginOf(key, "one", hostbound), "another host"},
		"a host and more":      {key, loginOf(key, "one", hostbound, host, host), "another host"},
		"another method":       {key, loginOf(key, "one", "hostbased"), "this is no login"},
		"more":                 {key, loginOf(key, "one", publicKey, []byte("x")), "this is no login"},
		"a commit's signature": {key, sshsig("git"), "the text of a commit is not shown"},
		"a file's signature":   {key, sshsig("file"), `namespace "file"`},
		"a text":               {key, []byte("tree 1"), "this is no login"},
		"nothing":              {key, nil, "this is no login"},
		"a long name":          {key, named(strings.Repeat("x", 257)), "name of who logs in"}, // the log would cut the host off
		"a line":               {key, named("git@safe.example\n"), "name of who logs in"},
		"a direction":          {key, named("git\u202e"), "name of who logs in"},
		"no UTF-8":             {key, named("git\xff"), "name of who logs in"},
	} {
		assert.Nil(t, c.sign(test.key, test.data), name)
		assert.Equal(t, audit.Deny, l.last().Verdict, name)
		assert.Contains(t, l.last().Detail, test.says, name)
	}
	assert.NotNil(t, c.sign(key, loginOf(key, "one", publicKey)), "it goes on")
	for _, kind := range []byte{1, 9, 17, 18, 19, 20, 22, 23, 25, 26} { // adds, removes and locks keys
		assert.Equal(t, []byte{failure}, c.ask(kind, []byte("x")))
	}
	assert.Equal(t, []byte{failure}, c.extend("query", gitMessage{}))

	unknown := l.connect(t)
	require.True(t, unknown.bind(stranger, "one", false))
	assert.Nil(t, unknown.sign(key, loginOf(key, "one", publicKey)))
	assert.Contains(t, l.last().Detail, "no host that the agent may connect to has this host key")

	unbound := l.connect(t)
	assert.Nil(t, unbound.sign(key, loginOf(key, "one", publicKey)))
	assert.Contains(t, l.last().Detail, "has not bound the connection")

	l.failure = errors.New("the log is full")
	unrecorded := l.connect(t)
	require.True(t, unrecorded.bind(l.host, "one", false))
	assert.Nil(t, unrecorded.sign(key, loginOf(key, "one", publicKey)))
}

// TestForwarded: a connection that is forwarded, bound to two sessions, or to a session that its host has not signed, signs nothing any
// more, whatever else it is bound to then.
func TestForwarded(t *testing.T) {
	l := newLab(t)
	stranger, _ := signer(t)
	key := l.named.PublicKey()
	signed, err := stranger.Sign(rand.Reader, []byte("one"))
	require.NoError(t, err)
	for name, test := range map[string]struct {
		first func(connection) bool
		says  string
	}{
		"forwarded":      {func(c connection) bool { return c.bind(l.host, "one", true) }, "a forwarded agent is refused"},
		"forwarded then": {func(c connection) bool { c.bind(l.host, "one", false); return c.bind(l.host, "one", true) }, "a forwarded agent is refused"},
		"two sessions":   {func(c connection) bool { c.bind(l.host, "other", false); return c.bind(l.host, "one", false) }, "another session"},
		"not the host's": {func(c connection) bool {
			return c.extend(bindExtension, bindMessage{l.host.PublicKey().Marshal(), []byte("one"), ssh.Marshal(signed), false})[0] == success
		}, "not signed by its host"},
		"no id":   {func(c connection) bool { return c.bind(l.host, "", false) }, "it has no id"},
		"nothing": {func(c connection) bool { return c.extend(bindExtension, struct{ Host []byte }{})[0] == success }, "short"},
	} {
		c := l.connect(t)
		assert.False(t, test.first(c), name)
		assert.Contains(t, l.last().Detail, test.says, name)
		assert.Equal(t, audit.Deny, l.last().Verdict, name)
		c.bind(l.host, "one", false)
		assert.Nil(t, c.sign(key, loginOf(key, "one", publicKey)), name)
		assert.Equal(t, []byte{failure}, c.ask(requestKeys, nil), name)
		assert.Nil(t, signatureOf(t, c.extend(message.SignGit, gitMessage{ssh.FingerprintSHA256(key), []byte("tree 1\n\nx")})), name)
	}
}

// TestSignGit: what is signed for git is a commit or a tag, as a whole shown to the operator, and its hash is made here.
func TestSignGit(t *testing.T) {
	l := newLab(t)
	key := l.named.PublicKey()
	var asked Question
	l.rule = scope.Decision{Ask: true, Rule: "ask"}
	l.approve = func(q Question) error { asked = q; return nil }
	c := l.connect(t)
	sign := func(text string) *ssh.Signature {
		return signatureOf(t, c.extend(message.SignGit, gitMessage{ssh.FingerprintSHA256(key), []byte(text)}))
	}
	for target, text := range map[string]string{"commit Subject": "tree 1\nparent 2\n\nSubject\n\nbody", "tag v1": "object 1\ntype commit\ntag v1\n\nx"} {
		signature := sign(text)
		require.NotNil(t, signature, target)
		sum := sha512.Sum512([]byte(text))
		of := append([]byte(signatureMagic), ssh.Marshal(struct{ Namespace, Reserved, Hash, Sum string }{"git", "", "sha512", string(sum[:])})...)
		assert.NoError(t, key.Verify(of, signature), target)
		assert.Equal(t, Question{Op: "sign", Target: target, Fingerprint: ssh.FingerprintSHA256(key), Text: text, Rule: "ask"}, asked)
		assert.Equal(t, target, l.last().Target)
	}
	for text, says := range map[string]string{"": "no commit", "x\n\ntree 1": "no commit", "tree \xff\n\nx": "no UTF-8", "tree 1\n\n\x00": "no UTF-8"} {
		assert.Nil(t, sign(text), text)
		assert.Contains(t, l.last().Detail, says, text)
	}
	l.approve = func(Question) error { return errors.New("denied by me") }
	assert.Nil(t, sign("tree 1\n\nx"))
	assert.Contains(t, l.last().Detail, "denied by me")
	l.approve = func(Question) error { // meanwhile
		l.mu.Lock()
		defer l.mu.Unlock()
		l.rule = scope.Decision{Rule: "deny"}
		return nil
	}
	assert.Nil(t, sign("tree 1\n\nx"))
	assert.Contains(t, l.last().Detail, "the rules have changed")

	large := l.connect(t)
	require.NoError(t, large.SetDeadline(time.Now().Add(time.Minute)))
	_, err := large.Write(binary.BigEndian.AppendUint32(nil, message.MaxFrame+1))
	require.NoError(t, err)
	_, err = large.Read(make([]byte, 1))
	assert.ErrorIs(t, err, io.EOF)
}

// TestKnown: hosts are known by their names in every form of known_hosts; a revoked key, and one of another host, are not.
func TestKnown(t *testing.T) {
	plain, _ := signer(t)
	revoked, _ := signer(t)
	line := func(s ssh.Signer) string { return string(ssh.MarshalAuthorizedKey(s.PublicKey())) }
	file := filepath.Join(t.TempDir(), "known_hosts")
	const hashed = "|1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|3988QV0VE8wmZL7suNrYQLITLCg=" // of the test of knownhosts: 192.168.1.61
	require.NoError(t, os.WriteFile(file, []byte("# comment\nbroken line\nshort\ngit.example,other.example "+line(plain)+"[port.example]:2222 "+line(plain)+
		hashed+" "+line(plain)+"@revoked * "+line(revoked)+"git.example "+line(revoked)), 0o600))
	k, err := ReadKnown(file, file+".none")
	require.NoError(t, err)
	all := []Host{{"git.example", 22}, {"port.example", 2222}, {"port.example", 22}, {"192.168.1.61", 22}, {"unknown.example", 22}}
	assert.Equal(t, []string{"git.example", "port.example:2222", "192.168.1.61"}, k.Of(all, plain.PublicKey()))
	assert.Empty(t, k.Of(all, revoked.PublicKey()))
	assert.Contains(t, k.Names, Host{"other.example", 22})
	none, err := ReadKnown()
	require.NoError(t, err)
	assert.Empty(t, none.Of(all, plain.PublicKey()))
	assert.Empty(t, none.Lines(all))
	lines := k.Lines(all[:2])
	assert.Contains(t, lines, "git.example ssh-ed25519 ")
	assert.Contains(t, lines, "[port.example]:2222 ssh-ed25519 ")
	assert.NotContains(t, lines, "other.example")
}
