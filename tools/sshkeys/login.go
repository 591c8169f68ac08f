package sshkeys

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/scopefs/scopefs/tools/sshkeys/message"
)

// session is the SSH session that a client has bound its connection to.
type session struct {
	id   []byte
	host ssh.PublicKey
}

// The layouts of session-bind@openssh.com and publickey-hostbound-v00@openssh.com: PROTOCOL.agent and PROTOCOL of OpenSSH; that of a request
// for authentication: RFC 4252, section 7.
type (
	bindMessage struct {
		Host, ID, Signature []byte
		Forwarding          bool
	}
	userauth struct {
		Session []byte
		Request byte
		User    string
		Service string
		Method  string
		Signed  bool
		Type    string
		Key     []byte
		Rest    []byte `ssh:"rest"`
	}
)

const (
	requestUserauth = 50 // SSH_MSG_USERAUTH_REQUEST
	sshService      = "ssh-connection"
	publicKey       = "publickey"
	hostbound       = "publickey-hostbound-v00@openssh.com"
	signatureMagic  = "SSHSIG" // PROTOCOL.sshsig
)

var errForwarded = errors.New("a forwarded agent is refused: ssh without -A, or ssh -J to go through a host")

// bind binds the connection to a session. Whoever speaks through the connection has then proved nothing but this: the host with the key
// has this session. A connection that is forwarded, or bound to two sessions, signs nothing any more: OpenSSH goes on after a refusal.
func (c *client) bind(contents []byte) error {
	var m bindMessage
	err := ssh.Unmarshal(contents, &m)
	switch {
	case err != nil:
	case m.Forwarding:
		err = errForwarded
	case c.bound != nil && !bytes.Equal(c.bound.id, m.ID):
		err = errors.New("the connection is bound to another session")
	default:
		c.bound, err = verified(m)
	}
	if err != nil && c.dead == nil {
		c.dead = err
	}
	return err
}

// verified returns the session of a message whose signature is the host's.
func verified(m bindMessage) (*session, error) {
	host, err := ssh.ParsePublicKey(m.Host)
	if err != nil {
		return nil, fmt.Errorf("host key: %w", err)
	}
	var signature ssh.Signature
	if err = ssh.Unmarshal(m.Signature, &signature); err == nil {
		err = host.Verify(m.ID, &signature)
	}
	if err == nil && len(m.ID) == 0 {
		err = errors.New("it has no id")
	}
	if err != nil {
		return nil, fmt.Errorf("the session is not signed by its host: %w", err)
	}
	return &session{m.ID, host}, nil
}

// login signs a request for authentication in the bound session.
func (c *client) login(ctx context.Context, m signMessage) (*ssh.Signature, error) {
	key, err := ssh.ParsePublicKey(m.Key)
	if err != nil {
		return nil, err
	}
	q := Question{Op: "login", Target: "unknown", Fingerprint: Fingerprint(key)}
	user, err := c.userOf(m)
	switch {
	case err != nil:
	case c.bound == nil:
		err = errors.New("ssh has not bound the connection to its session: OpenSSH 8.9 or newer does")
	default:
		hosts := c.Hosts(c.bound.host)
		q.Target = user + "@" + strings.Join(hosts, ",")
		if len(hosts) == 0 {
			q.Target = user + "@" + ssh.FingerprintSHA256(c.bound.host)
			err = fmt.Errorf("no host that the agent may connect to has this host key in known_hosts: allow the host with its port, and connect to it once yourself")
		}
	}
	return c.sign(ctx, q, m.Data, agent.SignatureFlags(m.Flags), err)
}

// maxUser bounds the name of a user, in bytes: useradd(8). The log and an approval have the whole name with the host.
const maxUser = 256

// userOf returns who logs in by a request, which must be that of the bound session.
func (c *client) userOf(m signMessage) (string, error) {
	if bytes.HasPrefix(m.Data, []byte(signatureMagic)) {
		var of struct {
			Namespace string
			Rest      []byte `ssh:"rest"`
		}
		if ssh.Unmarshal(m.Data[len(signatureMagic):], &of) == nil && of.Namespace == gitNamespace {
			return "", errors.New("the text of a commit is not shown: git signs with gpg.ssh.program = " + message.Program)
		}
		return "", fmt.Errorf("a signature of the namespace %.40q is not shown, and so not made", of.Namespace)
	}
	var u userauth
	err := ssh.Unmarshal(m.Data, &u)
	switch {
	case err != nil || u.Request != requestUserauth || u.Service != sshService || !u.Signed || !bytes.Equal(u.Key, m.Key):
		return "", errors.New("this is no login, and so not signed")
	case len(u.User) > maxUser || !utf8.ValidString(u.User) || strings.ContainsFunc(u.User, func(r rune) bool { return !unicode.IsPrint(r) }):
		return "", fmt.Errorf("the name of who logs in could not be shown: it has more than %d bytes, or others than printed characters", maxUser)
	case c.bound == nil:
		return u.User, nil
	case !bytes.Equal(u.Session, c.bound.id):
		return "", errors.New("the login is of another session than ssh has bound")
	case u.Method == publicKey && len(u.Rest) == 0:
		return u.User, nil
	case u.Method != hostbound:
		return "", errors.New("this is no login, and so not signed")
	}
	var host struct{ Key []byte }
	if ssh.Unmarshal(u.Rest, &host) != nil || !bytes.Equal(host.Key, c.bound.host.Marshal()) {
		return "", errors.New("the login is for another host than ssh has bound")
	}
	return u.User, nil
}
