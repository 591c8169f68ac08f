package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/client"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope/effect/prose"
)

// Exit statuses of run besides the command's own; the same as those of env(1) and timeout(1).
const (
	TimedOut      = 124
	RunFailed     = 125
	NotExecutable = 126
	NotFound      = 127
	Signal        = 128 // plus the signal's number
)

// Run are the flags of run.
type Run struct {
	TTY, NoTTY  bool
	Dir         string
	Program     string
	Changes     string
	ShowSecrets bool
	Quiet, JSON bool
	With        []string
	Keys        []string
	Publish     []string
	HostPorts   []string
	Env         Variables
}

// Command returns run, which calls do with its words and ends as that says. programs are the names for --for.
func (o *Run) Command(programs []string, do func(c *cobra.Command, words []string) (status int, err error)) *cobra.Command {
	c := &cobra.Command{
		Use:   "run [flags] AGENT|--dir DIR [flags] [--] [COMMAND [ARG...]]",
		Short: "run a command in an agent's sandbox",

		DisableFlagsInUseLine: true, // Use has them already: flags after COMMAND are the command's
		Long: `Runs a command in a sandbox that has the agent's view at /workspace, a
read-only system, and nothing else. If a daemon runs for the base, it starts the
sandbox; otherwise scopefs mounts the view for this command alone. Without COMMAND it
runs a shell, which reads standard input.

With --dir the view is of that directory, and no agent need be defined: scopefs makes
the definition $XDG_STATE_HOME/scopefs/ID/agents.d/ID.md once, for you to edit. The log
is there as well; audit, why and check find it in that directory, or by --dir.

With --with the sandbox has a further directory of the host, at its path there, in a view
of its own: with the agent's protections and what its rules hide, its history and a log.
No definition changes. Commands then start at the path that the agent's directory has on
the host, so that ../DIR works; /workspace is that directory, too.

With --publish this user's programs reach a server of the sandbox at 127.0.0.1:PORT of
this host; no other user, and no other agent. With --host-port the sandbox reaches a
service of this host at its own 127.0.0.1:PORT. Both hold for this run.

With --for the command is an agent program: scopefs finds it in PATH, shows it and its
interpreter, and adds its arguments. COMMAND is then what the program gets, and may be
left out. With --dir, too, this run may connect to the hosts of the program's presets.

The command gets pipes, or with -t its own terminal; -t is the default if standard
input and output are both terminals. Signals are forwarded.

The process list of the host shows the words of this command. A secret belongs into
-e NAME, into the file of --env-file, or into env of the agent's definition.

Exit status: the command's; 128+N if signal N killed it; 124 for a timeout; 125 if
scopefs failed; 126 if the command cannot be executed; 127 if it does not exist.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, words []string) error {
			code, err := do(c, words)
			if code == 0 && err == nil {
				return nil
			}
			return exit.With(code, noAgent(c, words, err))
		},
	}
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return exit.With(RunFailed, fmt.Errorf("%w (see scopefs help run)", err))
	})
	c.Flags().SetInterspersed(false)
	c.Flags().BoolVarP(&o.TTY, "tty", "t", false, "give the command a terminal")
	c.Flags().BoolVarP(&o.NoTTY, "no-tty", "T", false, "give the command pipes")
	c.Flags().StringVar(&o.Program, "for", "", "run this agent program: "+strings.Join(programs, ", "))
	_ = c.RegisterFlagCompletionFunc("for", cobra.FixedCompletions(programs, cobra.ShellCompDirectiveNoFileComp))
	c.Flags().BoolVarP(&o.Quiet, "quiet", "q", false, "do not print what the command has changed")
	c.Flags().BoolVar(&o.JSON, "json", false, "print that as a line of JSON, on standard error")
	AddProject(c, &o.ShowSecrets, &o.Changes)
	c.Flags().StringArrayVar(&o.With, "with", nil, "show the directory `DIR`, or DIR:ro without changes, DIR:ask once you allow it, or DIR:ro:ask, at its path; may be repeated")
	c.Flags().StringArrayVar(&o.Keys, "ssh-agent", nil, "let it use the key `KEY` of your SSH agent, KEY:allow without asking you; a file, or SHA256:...; may be repeated")
	c.Flags().StringArrayVar(&o.Publish, "publish", nil,
		"lead port `PORT` of this host's 127.0.0.1, or HOST:INSIDE, to a server in the sandbox; may be repeated")
	c.Flags().StringArrayVar(&o.HostPorts, "host-port", nil, "let the sandbox connect to port `PORT` of this host's 127.0.0.1; may be repeated")
	c.Flags().StringVarP(&o.Dir, "chdir", "C", "", "start in this directory of the view")
	c.Flags().StringArrayVarP(&o.Env.Set, "env", "e", nil, "set NAME=VALUE for the command, or NAME to the value that it has here")
	c.Flags().StringArrayVar(&o.Env.Files, "env-file", nil, "set the variables of a file, a line each; -e wins")
	return c
}

// Words returns the agent and the command of the words after the first flags. With
// --dir all words are the command. Flags may come after the agent, too.
func (o *Run) Words(c *cobra.Command, words []string, dir string) (name string, argv []string, err error) {
	if dir == "" {
		if len(words) == 0 {
			return "", nil, fmt.Errorf("which agent: give AGENT, or --dir DIR for a directory without one (usage: %s)", c.UseLine())
		}
		if c.ArgsLenAtDash() == 0 {
			return "", nil, fmt.Errorf("which agent: for this directory write %s", inDirectory(c, words))
		}
		name = words[0]
		if err := c.ParseFlags(words[1:]); err != nil {
			if isProgram(name) {
				err = fmt.Errorf("%w: if %s is the program, write %s", err, printable.Text(name), inDirectory(c, words))
			}
			return "", nil, err
		}
		words = c.Flags().Args()
	}
	if len(words) == 0 && o.Program == "" {
		words = []string{"sh"}
		if _, err := os.Stat("/usr/bin/bash"); err == nil {
			words = []string{"bash"}
		}
	}
	return name, words, nil
}

// inDirectory returns the command that runs a program in the working directory. It has a word for flags that were given: without
// --branch or --changes held the program would change the directory.
func inDirectory(c *cobra.Command, words []string) string {
	const long = 120
	prefix := []string{"scopefs", "run", "--dir", "."}
	if c.Flags().NFlag() > 0 {
		prefix = append(prefix, "FLAGS")
	}
	prefix = append(prefix, "--")
	if command := printable.Command(append(prefix, words...)...); command != "" && len(command) <= long {
		return command
	}
	return strings.Join(prefix, " ") + " COMMAND"
}

// isProgram reports whether a name is that of a program of this process's PATH.
func isProgram(name string) bool {
	_, err := exec.LookPath(name)
	return err == nil
}

// noAgent returns the error of a run, in other words if its agent is none, and its name that of a program.
func noAgent(c *cobra.Command, words []string, err error) error {
	refused, _ := errors.AsType[*client.Error](err)
	if !errors.Is(err, client.ErrUnknown) && !errors.Is(err, paths.ErrNoBase) && (refused == nil || refused.Kind != client.UnknownAgent) ||
		len(words) == 0 || !isProgram(words[0]) || c.Flags().Changed("base") || c.Flags().Changed("dir") {
		return err
	}
	return fmt.Errorf("%q is a program and no agent: for this directory write %s", printable.Text(words[0]), inDirectory(c, words))
}

// Roots returns the directories of --with.
func (o *Run) Roots() (roots []client.Root, err error) {
	for _, given := range o.With {
		name, read, ask := rootWords(given)
		dir, err := directory(name)
		if err == nil {
			roots = append(roots, client.Root{Dir: dir, Read: read, Ask: ask})
			continue
		}
		found, _ := os.ReadDir(filepath.Dir(name))
		var some []client.Root
		for _, e := range found {
			matched, _ := filepath.Match(filepath.Base(name), e.Name()) // of a bad pattern none
			dir, err := directory(filepath.Join(filepath.Dir(name), e.Name()))
			if err == nil && matched && !strings.HasPrefix(e.Name(), ".") &&
				!slices.ContainsFunc(roots, func(r client.Root) bool { return r.Dir == dir }) {
				some = append(some, client.Root{Dir: dir, Read: read, Ask: ask, Some: true})
			}
		}
		switch {
		case len(some) == 0:
			if i := strings.LastIndexByte(name, ':'); i > 0 {
				if _, err := directory(name[:i]); err == nil {
					return nil, fmt.Errorf("--with %s: unknown word %q: want DIR, DIR:ro, DIR:ask or DIR:ro:ask", printable.Text(given), name[i+1:])
				}
			}
			return nil, fmt.Errorf("--with %s: no such directory: give an existing one, DIR:ro, DIR:ask or DIR:ro:ask", printable.Text(given))
		case len(some) > maxSome:
			return nil, fmt.Errorf("--with %s: names %d directories: name at most %d", printable.Text(given), len(some), maxSome)
		}
		roots = append(roots, some...)
	}
	return roots, nil
}

// rootWords returns the name of a directory of --with, and which words are behind it, in any order.
func rootWords(given string) (name string, read, ask bool) {
	for name = given; ; {
		if of, ok := strings.CutSuffix(name, ":ro"); ok && !read {
			name, read = of, true
		} else if of, ok := strings.CutSuffix(name, ":ask"); ok && !ask {
			name, ask = of, true
		} else {
			return name, read, ask
		}
	}
}

// maxSome bounds the directories that a pattern of --with names: each has a process.
const maxSome = 32

// directory returns the path of a directory without links.
func directory(name string) (string, error) {
	dir, err := filepath.Abs(name)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	var info os.FileInfo
	if err == nil {
		info, err = os.Stat(dir)
	}
	if name == "" || err != nil || !info.IsDir() {
		return "", cmp.Or(err, os.ErrNotExist)
	}
	return dir, nil
}

// maxKey bounds a file with a public key, in bytes.
const maxKey = 64 << 10

// SSH returns the user's SSH agent, the keys of --ssh-agent, and whether git signs commits in the agent's directory; dir may be "".
func (o *Run) SSH(dir string) (*client.SSH, error) {
	ssh := &client.SSH{Agent: os.Getenv("SSH_AUTH_SOCK"), Signs: signs(dir)}
	if len(o.Keys) > 0 && ssh.Agent == "" {
		return nil, errors.New("--ssh-agent: SSH_AUTH_SOCK is not set: start ssh-agent, and ssh-add the key")
	}
	for _, given := range o.Keys {
		name, use := given, "ask"
		for _, suffix := range []string{"allow", "ask"} {
			if of, ok := strings.CutSuffix(given, ":"+suffix); ok {
				name, use = of, suffix
			}
		}
		if !strings.HasPrefix(name, "SHA256:") {
			text, err := bounded.File(strings.TrimSuffix(name, ".pub")+".pub", maxKey)
			if err != nil {
				return nil, fmt.Errorf("--ssh-agent %s: %w: give the file of a key that has its public part beside it, or SHA256:... of ssh-add -l", printable.Text(given), err)
			}
			name = strings.TrimSpace(string(text))
		}
		ssh.Keys = append(ssh.Keys, client.SSHKey{Key: name, Use: use})
	}
	return ssh, nil
}

// gitTime bounds the question whether git signs.
const gitTime = 2 * time.Second

// signs reports whether git signs commits in a directory. git-config(1) runs no program to say so.
func signs(dir string) bool {
	if _, err := os.Lstat(filepath.Join(dir, ".git")); dir == "" || err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), gitTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", "config", "--type=bool", "--get", "commit.gpgSign")
	cmd.Dir, cmd.WaitDelay = dir, time.Second
	out, err := cmd.Output()
	return err == nil && strings.TrimSpace(string(out)) == "true"
}

// Report prints what a command has changed: of an agent, or of the directory of --dir.
func (o *Run) Report(to io.Writer, run *client.Run, name, dir string) {
	e := run.Effects
	switch {
	case e == nil || o.Quiet || e.Direct && len(e.Roots) == 0 && !o.JSON: // the operator has said so
	case o.JSON:
		_ = json.NewEncoder(to).Encode(map[string]any{"effects": e, "duration_ms": run.Took.Milliseconds()})
	default:
		words := func(all ...string) string {
			if dir != "" && dir != "." {
				all = append(all, "--dir", dir)
			} else if name != "" {
				all = append(all, name)
			}
			return printable.Command(append([]string{"scopefs"}, all...)...)
		}
		list := words("changes")
		text := prose.Text(e, func(_ string, created bool) bool { return created }, list, "")
		if sum := prose.Sum(e.Counts); sum != "" {
			text += fmt.Sprintf("%s in %s · %s · %s --session last\n", sum, brief(run.Took), list, words("undo"))
		}
		for line := range strings.Lines(text) {
			fmt.Fprint(to, "scopefs: ", line)
		}
	}
}

// brief returns a duration in seconds, with a tenth below ten.
func brief(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// NotStarted returns the exit status and the error of a run that a daemon has refused. agent says that an agent has the program's name.
func NotStarted(err error, agent bool) (int, error) {
	refused, _ := errors.AsType[*client.Error](err)
	switch {
	case refused != nil && refused.Kind == client.NotFound:
		if agent {
			err = fmt.Errorf("%w (--dir takes no AGENT)", err)
		}
		return NotFound, err
	case refused != nil && refused.Kind == client.NotExecutable:
		return NotExecutable, err
	}
	return RunFailed, err
}

// Ended returns the exit status of a run that has ended.
func Ended(e client.RunExit) (int, error) {
	switch {
	case e.TimedOut:
		return TimedOut, errors.New("the agent's time limit was reached")
	case e.Signal != 0:
		return Signal + e.Signal, nil
	}
	return e.Code, nil
}
