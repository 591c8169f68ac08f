// Package sshkeys lets an agent log in and sign with keys of the user's SSH agent, without having the keys: a socket in the sandbox
// speaks the agent protocol (draft-ietf-sshm-ssh-agent), and a [Door] behind it decides about each signature, records it, and has the
// user's agent make it.
//
// A login is signed for the server that the client is connected to, and no other: the client binds its connection to the session
// (session-bind@openssh.com, OpenSSH 8.9; PROTOCOL.agent of OpenSSH), the server's host key has signed the session's id, and the rules must
// let the agent connect to a host that has this key. Agent forwarding is refused. A commit or tag of git is signed when its whole text
// is here, so that the operator can be shown what is signed. Nothing else is signed.
package sshkeys

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/sshkeys/message"
)

// Bounds of a door.
const (
	maxConnections = 16
	answerTime     = time.Minute
	approveTime    = 45 * time.Second // a server waits two minutes for a login: LoginGraceTime of sshd_config(5)
)

// Tenant is the session whose programs use keys.
type Tenant struct {
	// Decide decides about a key, by its fingerprint (SHA256:...), under the current rules. One that is neither allowed nor asked about
	// does not exist.
	Decide func(fingerprint string) scope.Decision
	// Dial connects to the user's SSH agent.
	Dial func(context.Context) (net.Conn, error)
	// Hosts returns the names of hosts with a host key, as known_hosts has it, that the agent may connect to.
	Hosts func(key ssh.PublicKey) []string
	// Call returns the call that a new connection is of; "": unknown.
	Call func() string
	// Record writes to the log. Without it nothing is signed.
	Record func(context.Context, audit.Event) error
	// Approve asks the operator about a signature. The error says why there is none.
	Approve func(context.Context, Question) error
	// Refused gets each refusal, for the operator. It must return soon.
	Refused func(text string)
}

// Question is a signature that waits for the operator.
type Question struct {
	Op          string // login or sign
	Target      string // who logs in where, or the kind of object
	Fingerprint string
	Text        string // all of what is signed, if it is a text
	Rule        string
}

// Door serves the socket of one session.
type Door struct {
	Tenant
	slots chan struct{}
	wait  sync.WaitGroup
}

// New returns a door.
func New(t Tenant) *Door { return &Door{Tenant: t, slots: make(chan struct{}, maxConnections)} }

// Serve serves clients until the listener is closed or ctx ends, and returns when they are gone.
func (d *Door) Serve(ctx context.Context, l net.Listener) {
	ctx, cancel := context.WithCancel(ctx)
	defer d.wait.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		c, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // no descriptors are left, and there will be again
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second):
			}
			continue
		}
		select {
		case d.slots <- struct{}{}:
		default:
			c.Close()
			continue
		}
		d.wait.Go(func() {
			defer func() { <-d.slots }()
			defer c.Close()
			defer context.AfterFunc(ctx, func() { c.Close() })()
			d.serve(ctx, c)
		})
	}
}

// The messages of the protocol: section 6 of the draft.
const (
	failure       = 5
	success       = 6
	requestKeys   = 11
	keysAnswer    = 12
	signRequest   = 13
	bindExtension = "session-bind@openssh.com"
)

type (
	signMessage struct {
		Key, Data []byte
		Flags     uint32
	}
	extensionMessage struct {
		Name     string
		Contents []byte `ssh:"rest"`
	}
	gitMessage struct { // contents of message.SignGit
		Fingerprint string
		Text        []byte
	}
)

// client is one connection to the socket. Its requests come one by one: who forwards a connection cannot have two sessions on it.
type client struct {
	*Door
	call  string
	bound *session
	dead  error // why nothing more is signed for the connection
}

// serve reads requests. package agent has a server, too: it writes each refusal to the process's own log, and reads 16 MiB.
func (d *Door) serve(ctx context.Context, conn io.ReadWriter) {
	c := &client{Door: d}
	if d.Call != nil {
		c.call = d.Call()
	}
	for {
		var head [4]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return
		}
		size := binary.BigEndian.Uint32(head[:])
		if size == 0 || size > message.MaxFrame {
			return
		}
		request := make([]byte, size)
		if _, err := io.ReadFull(conn, request); err != nil {
			return
		}
		answer := c.answer(ctx, request[0], request[1:])
		binary.BigEndian.PutUint32(head[:], uint32(len(answer)))
		if _, err := conn.Write(append(head[:], answer...)); err != nil {
			return
		}
	}
}

// answer does a request. Whoever asks for what is not here gets no reason: the protocol has none.
func (c *client) answer(ctx context.Context, kind byte, of []byte) []byte {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	var signature *ssh.Signature
	var err error
	switch kind {
	case requestKeys:
		return c.list(ctx)
	case signRequest:
		var m signMessage
		if err = ssh.Unmarshal(of, &m); err == nil {
			signature, err = c.login(ctx, m)
		}
	case message.Extension:
		var m extensionMessage
		if err = ssh.Unmarshal(of, &m); err != nil {
			break
		}
		switch m.Name {
		case bindExtension:
			if err = c.bind(m.Contents); err == nil {
				return []byte{success}
			}
			c.refuse(ctx, audit.Event{Event: audit.KindKey, Op: "bind", Call: c.call, Verdict: audit.Deny}, err)
		case message.SignGit:
			var g gitMessage
			if err = ssh.Unmarshal(m.Contents, &g); err == nil {
				signature, err = c.signGit(ctx, g)
			}
		}
	}
	if err != nil || signature == nil {
		return []byte{failure}
	}
	return append([]byte{message.SignResponse}, ssh.Marshal(struct{ Signature []byte }{ssh.Marshal(signature)})...)
}

// Keys returns the keys of the user's agent that the rules name.
func (d *Door) Keys(ctx context.Context) (keys []*agent.Key, err error) {
	err = d.upstream(ctx, func(a agent.ExtendedAgent) error {
		all, err := a.List()
		for _, k := range all {
			if decision := d.Decide(Fingerprint(k)); decision.Allow || decision.Ask {
				keys = append(keys, k)
			}
		}
		return err
	})
	return keys, err
}

// Fingerprint is that of the key in a certificate, as ssh-add(1) prints it; "" for what is no key.
func Fingerprint(k ssh.PublicKey) string {
	if of, ok := k.(*agent.Key); ok {
		parsed, err := ssh.ParsePublicKey(of.Blob)
		if err != nil {
			return ""
		}
		k = parsed
	}
	if cert, ok := k.(*ssh.Certificate); ok {
		k = cert.Key
	}
	return ssh.FingerprintSHA256(k)
}

// FingerprintOf returns that of a public key as ssh-keygen(1) writes it to a file.
func FingerprintOf(line string) (string, error) {
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
	if err != nil {
		return "", errors.New("this is no public key")
	}
	return Fingerprint(key), nil
}

func (c *client) list(ctx context.Context) []byte {
	keys, err := c.Keys(ctx)
	if err != nil || c.dead != nil {
		return []byte{failure}
	}
	answer := binary.BigEndian.AppendUint32([]byte{keysAnswer}, uint32(len(keys)))
	for _, k := range keys {
		answer = append(answer, ssh.Marshal(struct {
			Blob    []byte
			Comment string
		}{k.Blob, Fingerprint(k)})...) // a comment of the user's says where the key is
	}
	return answer
}

// DialAgent connects to the user's SSH agent, by the value of SSH_AUTH_SOCK.
func DialAgent(ctx context.Context, name string) (net.Conn, error) {
	if name == "" {
		return nil, errors.New("SSH_AUTH_SOCK is not set")
	}
	return (&net.Dialer{}).DialContext(ctx, "unix", name)
}

// upstream connects to the user's agent for one request.
func (d *Door) upstream(ctx context.Context, do func(agent.ExtendedAgent) error) error {
	conn, err := d.Dial(ctx)
	if err != nil {
		return fmt.Errorf("the user's SSH agent: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	return do(agent.NewClient(conn))
}

// sign decides about a signature, records that, and has it made.
func (c *client) sign(ctx context.Context, q Question, data []byte, flags agent.SignatureFlags, wrong error) (signature *ssh.Signature, err error) {
	d := c.Decide(q.Fingerprint)
	q.Rule = d.Rule
	e := audit.Event{Event: audit.KindKey, Op: q.Op, Target: q.Target, Call: c.call, Verdict: audit.Deny, Rule: d.Rule, Detail: q.Fingerprint}
	switch {
	case !d.Allow && !d.Ask:
		err = fmt.Errorf("the key %s is not one of the agent's: name it in ssh_keys, or by run --ssh-agent", q.Fingerprint)
	case c.dead != nil:
		err = c.dead
	case wrong != nil:
		err = wrong
	case d.Ask:
		asked, cancel := context.WithTimeout(ctx, approveTime)
		err = c.Approve(asked, q)
		cancel()
		if now := c.Decide(q.Fingerprint); err == nil && !now.Allow && !now.Ask {
			err = errors.New("the rules have changed meanwhile")
		}
	}
	if err == nil {
		var key *agent.Key
		if key, err = c.keyOf(ctx, q.Fingerprint); err == nil {
			e.Verdict = audit.Allow
			if err = c.Record(ctx, e); err == nil {
				if !strings.Contains(key.Type(), "rsa") { // the flags are of RSA
					flags = 0
				}
				err = c.upstream(ctx, func(a agent.ExtendedAgent) (err error) {
					signature, err = a.SignWithFlags(key, data, flags)
					return err
				})
			}
			e.Outcome = "failed"
		}
	}
	if err != nil {
		e.Detail += ": "
		c.refuse(ctx, e, err)
		return nil, err
	}
	return signature, nil
}

// refuse records a refusal, and tells the operator.
func (c *client) refuse(ctx context.Context, e audit.Event, err error) {
	e.Detail += err.Error()
	_ = c.Record(context.WithoutCancel(ctx), e) // it is refused whether recorded or not
	if c.Refused != nil {
		c.Refused(strings.TrimSpace(fmt.Sprintf("ssh key: %s %s", e.Op, e.Target)) + ": " + err.Error())
	}
}

func (c *client) keyOf(ctx context.Context, fingerprint string) (*agent.Key, error) {
	keys, err := c.Keys(ctx)
	for _, k := range keys {
		if Fingerprint(k) == fingerprint && k.Type() != "" {
			return k, err
		}
	}
	return nil, errors.Join(err, fmt.Errorf("the user's SSH agent does not have the key %s: ssh-add it", fingerprint))
}
