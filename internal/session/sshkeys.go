package session

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/companion"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/hosts"
	hostrules "github.com/scopefs/scopefs/scope/network"
	"github.com/scopefs/scopefs/tools/approvals"
	"github.com/scopefs/scopefs/tools/file/worker"
	"github.com/scopefs/scopefs/tools/sandbox"
	"github.com/scopefs/scopefs/tools/sshkeys"
	"github.com/scopefs/scopefs/tools/sshkeys/message"
)

// SSH is what a command of the operator's says of SSH keys.
type SSH struct {
	Agent string                   // the socket of the user's agent; "": that of this process
	Keys  map[string]agents.KeyUse // by fingerprint, beside those of the definition
	Signs bool                     // the user's git signs commits in the agent's directory

	Refused func(text string) // gets each refusal; nil drops them
}

// keyring is a sandbox's way to the user's SSH keys: see package sshkeys. It ends with the sandbox, and with the daemon.
type keyring struct {
	agent *Agent
	given SSH
	known *sshkeys.Known
	*sshkeys.Door
	listener net.Listener
	name     string // of the socket, until serve
	lacks    []string
	cancel   context.CancelFunc
	ended    chan struct{}
}

// agentTime bounds the question for the keys of the user's agent when a sandbox starts.
const agentTime = 2 * time.Second

// equipSSH adds what ssh(1) needs to reach hosts, and, where rules name a key, the socket of an agent and what git(1) signs by.
func (b *Sandbox) equipSSH(ctx context.Context, spec *sandbox.Spec, owner account.User, p Purpose) error {
	if !p.own() {
		return nil
	}
	a, k := b.agent, &keyring{agent: b.agent, given: p.SSH}
	program, err := companion.Open("scopefs-ssh")
	if err != nil {
		a.Warnings.Warn(a.id, "ssh reaches no host", "err", err)
		return nil
	}
	spec.Binds = append(slices.Clone(spec.Binds), sandbox.Bind{File: program, At: message.Program})
	b.opened = append(b.opened, program)
	if k.known, err = sshkeys.ReadKnown(knownFiles()...); err != nil {
		a.Warnings.Warn(a.id, "no host of ssh is known", "err", err)
		k.known, _ = sshkeys.ReadKnown() // of no file there is no error
	}
	spec.SSH = &sandbox.SSH{Known: k.known.Lines(b.network.candidates(b, p, k.known))}
	b.keys = k
	if p.Chain != "" { // a task has no keys
		return nil
	}
	if len(k.named()) == 0 {
		k.unsigned()
		return nil
	}
	k.Door = sshkeys.New(k.tenant(b, p))
	asked, cancel := context.WithTimeout(ctx, agentTime)
	defer cancel()
	keys, err := k.Keys(asked)
	if err != nil {
		k.lacks = append(k.lacks, err.Error()+": start ssh-agent, and ssh-add the key, before the command or the daemon")
	}
	var has []string
	for _, key := range keys {
		has = append(has, sshkeys.Fingerprint(key))
	}
	for _, name := range k.named() {
		if err == nil && !slices.Contains(has, name) {
			k.lacks = append(k.lacks, "your SSH agent does not have the key "+name+": ssh-add it")
		}
	}
	if len(keys) == 0 {
		k.unsigned()
		return nil
	}
	if err := k.listen(owner); err != nil {
		return err
	}
	fd, err := unix.Open(k.name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket of SSH keys: %w", err)
	}
	socket := os.NewFile(uintptr(fd), k.name)
	b.opened = append(b.opened, socket)
	spec.Binds = append(spec.Binds, sandbox.Bind{File: socket, At: message.Socket})
	env := maps.Clone(spec.Env)
	env["SSH_AUTH_SOCK"] = message.Socket
	signing := "key::" + strings.TrimSpace(string(ssh.MarshalAuthorizedKey(keys[0])))
	sign := []string{"gpg.format", "ssh", "gpg.ssh.program", message.Program, "user.signingkey", signing}
	if k.given.Signs {
		sign = append(sign, "commit.gpgSign", "true")
	}
	setGit(env, sign...)
	spec.Env = env
	return nil
}

// unsigned tells a user whose git signs commits that the agent's does not.
func (k *keyring) unsigned() {
	if k.given.Signs {
		k.lacks = append(k.lacks, "your git signs commits here (commit.gpgSign), and the agent has no key: its commits are not signed: "+
			"run --ssh-agent KEY, or ssh_keys in its definition")
	}
}

// setGit makes git(1) take these keys and values over those of every file: git-config(1), ENVIRONMENT. Variables of the agent's win.
func setGit(env map[string]string, pairs ...string) {
	for n := range len(pairs) / 2 {
		env[fmt.Sprintf("GIT_CONFIG_KEY_%d", n)], env[fmt.Sprintf("GIT_CONFIG_VALUE_%d", n)] = pairs[2*n], pairs[2*n+1]
	}
	env["GIT_CONFIG_COUNT"] = fmt.Sprint(len(pairs) / 2)
}

// unsigned makes git commit without a signature where a repository wants one: a sandbox has no key of gpg's, and git would fail.
func unsigned(env map[string]string) {
	if _, own := env["GIT_CONFIG_COUNT"]; !own {
		setGit(env, "commit.gpgSign", "false", "tag.gpgSign", "false", "push.gpgSign", "false")
	}
}

func knownFiles() []string {
	files := []string{"/etc/ssh/ssh_known_hosts"}
	if home, err := os.UserHomeDir(); err == nil {
		files = append(files, filepath.Join(home, ".ssh/known_hosts"))
	}
	return files
}

// candidates returns the hosts that the rules let a sandbox connect to: those that rules name, and those that known hosts name.
func (n *network) candidates(b *Sandbox, p Purpose, known *sshkeys.Known) (all []sshkeys.Host) {
	rules, policy := n.rules(b, p), n.hosts()
	add := func(name string, port uint16) {
		host, err := hostrules.ParseHost(name)
		if err != nil || slices.Contains(all, sshkeys.Host{Name: host, Port: port}) {
			return
		}
		if d, _ := rules.Connect(host, port); d.Allow || d.Ask {
			all = append(all, sshkeys.Host{Name: host, Port: port})
		}
	}
	if policy != nil && policy.Kind() == hosts.Rules {
		of := policy.Network().Rules
		for _, r := range slices.Concat(of.Allow, of.Ask) {
			for _, port := range r.Ports {
				add(r.Host, port)
			}
		}
	}
	for _, h := range known.Names {
		add(h.Name, h.Port)
	}
	return all
}

// named returns the fingerprints of the keys that may be used now, sorted.
func (k *keyring) named() (names []string) {
	var own map[string]agents.KeyUse
	if def, err := k.agent.Definition(); err == nil {
		own = def.SSHKeys
	}
	for _, all := range []map[string]agents.KeyUse{own, k.given.Keys} {
		for name := range all {
			if d := k.decide(name); (d.Allow || d.Ask) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// decide decides about a key: deny > ask > allow of the definition and the command. What neither names is denied.
func (k *keyring) decide(fingerprint string) (d scope.Decision) {
	var uses []agents.KeyUse
	if def, err := k.agent.Definition(); err != nil {
		return scope.Decision{Rule: "no definition"}
	} else if use := def.SSHKeys[fingerprint]; use != "" {
		uses, d.Rule = append(uses, use), fmt.Sprintf("ssh_keys: {%q: %s}", fingerprint, use)
	}
	if use := k.given.Keys[fingerprint]; use != "" {
		uses, d.Rule = append(uses, use), cmp.Or(d.Rule, fmt.Sprintf("run --ssh-agent %s:%s", fingerprint, use))
	}
	switch {
	case len(uses) == 0:
		d.Rule = "ssh_keys"
	case slices.Contains(uses, agents.KeyDeny):
	case slices.Contains(uses, agents.KeyAsk):
		d.Ask = true
	default:
		d.Allow = true
	}
	return d
}

func (k *keyring) tenant(b *Sandbox, p Purpose) sshkeys.Tenant {
	a := k.agent
	return sshkeys.Tenant{
		Decide: k.decide,
		Dial: func(ctx context.Context) (net.Conn, error) {
			return sshkeys.DialAgent(ctx, cmp.Or(k.given.Agent, os.Getenv("SSH_AUTH_SOCK")))
		},
		Hosts: func(key ssh.PublicKey) []string { return k.known.Of(b.network.candidates(b, p, k.known), key) },
		Call:  func() string { return b.OnlyTag(worker.Tag) },
		Record: func(ctx context.Context, e audit.Event) error {
			e.Agent, e.Session, e.Parent, e.Chain, e.Trace = string(a.id), b.Name, p.Parent, p.Chain, p.Trace.String()
			if err := a.paces.Wait(ctx, b.Done(), e); err != nil {
				return fmt.Errorf("wait for the log: %w", err)
			}
			return a.Record(ctx, e)
		},
		Approve: func(ctx context.Context, q sshkeys.Question) error { return k.approve(ctx, b, p, q) },
		Refused: func(text string) {
			if k.given.Refused != nil {
				k.given.Refused(text)
			}
		},
	}
}

// approve waits for the operator's decision about one signature.
func (k *keyring) approve(ctx context.Context, b *Sandbox, p Purpose, q sshkeys.Question) error {
	a := k.agent
	def, err := a.Definition()
	if err != nil {
		return err
	}
	if a.Approvals() == nil {
		return approvals.ErrNobody
	}
	arguments, err := json.Marshal(map[string]string{"key": q.Fingerprint, "for": q.Target, "text": q.Text})
	if err != nil {
		return err
	}
	said, err := a.Approvals().Wait(ctx, approvals.Approval{Agent: a.id, Chain: p.Chain, Session: b.Name, Tool: "ssh:" + q.Op, Arguments: arguments,
		Policy: def.Grants.Version(), Rule: q.Rule}, func(of approvals.Approval) error {
		outcome := audit.OutcomeUsed
		if of.State == approvals.Waits {
			outcome = audit.OutcomeAsked
		}
		return a.Record(context.WithoutCancel(ctx), audit.Event{Event: audit.KindApproval, Agent: string(a.id), Session: b.Name, Chain: p.Chain,
			Parent: p.Parent, Op: "ssh:" + q.Op, Target: q.Target, Rule: q.Rule, Outcome: outcome, Detail: of.ID})
	})
	switch {
	case errors.Is(err, approvals.ErrNobody):
		return errors.New("nobody is here who could approve it: run on a terminal, or name the key as KEY:allow")
	case err != nil:
		return err
	case said.State == approvals.Granted || said.State == approvals.Stands:
		return nil
	case said.State == approvals.Denied:
		return errors.New("the operator has denied it")
	}
	return fmt.Errorf("nobody has decided about approval %s", said.ID)
}

// listen makes the socket for the agent's user.
func (k *keyring) listen(owner account.User) (err error) {
	k.name = k.agent.Paths.ToolSocket("ssh-" + rand.Text())
	if err = os.MkdirAll(filepath.Dir(k.name), 0o711); err != nil {
		return err
	}
	if k.listener, err = api.Listen(k.name); err != nil {
		return err
	}
	if k.agent.Root {
		if err = os.Lchown(k.name, int(owner.UID), int(owner.GID)); err != nil {
			k.close()
		}
	}
	return err
}

// serve serves the socket, which has no name on the host any more: only the sandbox reaches it.
func (k *keyring) serve() {
	if k == nil || k.listener == nil {
		return
	}
	os.Remove(k.name)
	ctx, cancel := context.WithCancel(context.Background())
	k.cancel, k.ended = cancel, make(chan struct{})
	go func() {
		defer close(k.ended)
		k.Serve(ctx, k.listener)
	}()
}

// close ends the connections.
func (k *keyring) close() {
	if k == nil || k.listener == nil {
		return
	}
	k.listener.Close()
	os.Remove(k.name)
	if k.cancel != nil {
		k.cancel()
		<-k.ended
	}
}

// Lacks returns a line for each thing that the sandbox lacks: devices, SSH keys, events of the host's changes.
func (b *Sandbox) Lacks() []string {
	lacks := b.Session.Lacks()
	if b.keys != nil {
		lacks = slices.Concat(lacks, b.keys.lacks)
	}
	if b.view != nil && !b.view.Watches() {
		lacks = append(lacks, "watchers in the sandbox get no events of what changes outside: CHOKIDAR_USEPOLLING and its like make some poll")
	}
	return lacks
}
