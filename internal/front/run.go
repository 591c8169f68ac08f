package front

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/client"
	"github.com/scopefs/scopefs/internal/command"
	"github.com/scopefs/scopefs/internal/companion"
	"github.com/scopefs/scopefs/internal/embedded"
	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/internal/terminal"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/hosts/keys"
)

func (f *front) addRun(root *cobra.Command) {
	var o command.Run
	root.AddCommand(o.Command(nil, func(c *cobra.Command, words []string) (int, error) {
		name, argv, err := o.Words(c, words, f.Dir)
		if err != nil {
			return 0, errLeft
		}
		return f.run(c, name, argv, &o)
	}))
}

// run runs a command. It leaves to scopefsd: a question on the terminal, an agent program, a change of a definition.
func (f *front) run(c *cobra.Command, name string, argv []string, o *command.Run) (int, error) {
	in := terminal.Input(os.Stdin)
	asks := terminal.File(in) != nil && terminal.Is(os.Stdout) && !o.NoTTY
	if asks || o.TTY && o.NoTTY || o.Program != "" || o.Changes != "" || o.ShowSecrets || len(o.Env.Files) > 0 || elsewhere(argv[0]) {
		return 0, errLeft
	}
	p, project, id, err := f.agent(name, true)
	if err != nil {
		return 0, err
	}
	keys, err := keysOf(p)
	if err != nil {
		return 0, err
	}
	env, err := o.Env.Read()
	if err != nil {
		return command.RunFailed, err
	}
	if t := os.Getenv("TERM"); t != "" && env["TERM"] == "" {
		env["TERM"] = t
	}
	with, err := o.Roots()
	if err != nil {
		return command.RunFailed, err
	}
	dir := ""
	if project != nil {
		dir = project.Dir
	}
	keyring, err := o.SSH(dir)
	if err != nil {
		return command.RunFailed, err
	}
	req := client.RunRequest{Argv: argv, With: with, SSH: keyring, Publish: o.Publish, HostPorts: o.HostPorts,
		Dir: o.Dir, Env: env, Keys: keys, Others: project != nil && f.Dir != "", Stops: true}
	if o.TTY {
		req.TTY = terminal.Size()
	}
	start := func() (*client.Run, error) {
		return client.New(p).Run(c.Context(), id, o.TTY, func(resume *client.Resume) any {
			req.Resume = resume
			return req
		})
	}
	progress := terminal.Show(os.Stderr, terminal.Soon, "starting the agent "+string(id))
	defer progress.End()
	run, err := start()
	if errors.Is(err, client.ErrNoDaemon) && !embedded.Serves(p) {
		var end func()
		if p, end, err = embedded.Start(c.Context(), p, id, io.Discard); err != nil {
			return command.RunFailed, err
		}
		defer end()
		run, err = start()
	}
	refused, _ := errors.AsType[*client.Error](err)
	switch {
	case errors.Is(err, client.ErrNoDaemon), refused != nil && refused.Kind == client.Closing:
		return 0, errLeft
	case refused != nil && refused.Kind == client.NotFound && !strings.Contains(argv[0], "/") && found(argv[0]) != "":
		return 0, errLeft // scopefsd shows it in the sandbox
	case err != nil:
		return command.NotStarted(err, f.Dir != "" && defined(p, scope.ID(argv[0])))
	}
	defer run.Close()
	progress.End()
	ended, err := terminal.Attend(run, in, os.Stdout, os.Stderr, f.remedyOf(name), nil)
	if err != nil {
		return command.RunFailed, err
	}
	o.Report(os.Stderr, run, name, f.Dir)
	return command.Ended(ended)
}

// found returns the file of a program in PATH; "": there is none.
func found(name string) string {
	file, _ := exec.LookPath(name)
	return file
}

// elsewhere reports whether a command names a program that a sandbox may not have.
func elsewhere(name string) bool {
	if strings.Contains(name, "/") {
		return false
	}
	switch dir := filepath.Dir(found(name)); dir {
	case ".", "/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin":
		return false
	}
	return true
}

// keysOf returns the variables of this process that credentials of presets read. Presets in files are scopefsd's to read.
func keysOf(p paths.Paths) (map[string]string, error) {
	for _, dir := range []string{p.Base, p.User} {
		if _, err := os.Lstat(filepath.Join(dir, "presets.d")); dir != "" && !errors.Is(err, fs.ErrNotExist) {
			return nil, errLeft
		}
	}
	set := map[string]string{}
	for _, name := range keys.Builtin() {
		if value := os.Getenv(name); value != "" {
			set[name] = value
		}
	}
	return set, nil
}

// remedyOf returns a function for the remedies of refusals, as [terminal.Attend] needs it. The command that allows a host follows from
// definitions: scopefsd reads them.
func (f *front) remedyOf(name string) func(client.Note) string {
	return func(n client.Note) string {
		if n.Host == "" {
			return n.Remedy
		}
		program, err := companion.Open("scopefsd")
		if err != nil {
			return n.Remedy
		}
		defer program.Close()
		words := []string{"remedy", "--agent", name}
		for flag, value := range map[string]string{"base": f.Flags.Base, "state": f.Flags.State, "run": f.Flags.Run, "dir": f.Dir} {
			if f.Given(flag) {
				words = append(words, fmt.Sprintf("--%s=%s", flag, value))
			}
		}
		out, err := exec.Command(program.Name(), append(words, "--", n.Host)...).Output()
		if text := strings.TrimSpace(string(out)); err == nil && text != "" {
			return text
		}
		return n.Remedy
	}
}
