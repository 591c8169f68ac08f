package logcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/audit/proof"
	"github.com/scopefs/scopefs/audit/tree"
	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/internal/state"
	"github.com/scopefs/scopefs/internal/terminal"
)

// These limit files that the operator names, in bytes.
const (
	maxHead  = 64 << 10
	maxProof = 256 << 20
)

type verifyOptions struct {
	heads  []string
	key    string
	beyond bool
	json   bool
	signed witnessOptions
}

func (v Env) verifyCmd() *cobra.Command {
	var o verifyOptions
	c := &cobra.Command{
		Use:   "verify [DIRECTORY]",
		Short: "compare the log with its signed heads",
		Long: `Reads the whole log, {state}/audit or a copy of it, and compares its lines with its last signed
head, and with heads that were kept elsewhere: see scopefs audit head. It needs no daemon. Of a log
that is not what was recorded it names the first line that is not.

Without DIRECTORY it also compares the heads of {state}/heads, and prints which witnesses have signed
them, by the keys that this host has of its fleet and its anchors, and up to which event.

"valid by this log's own key" says that the lines are those of the log's own head: whoever has the key
can have written all anew, and the other keys of this host. "valid" says that a head from elsewhere has them.

Exit status: 0 the lines are those that were recorded, up to the last head that was compared, 1 they
are not, 4 --require-head or --checkpoint was given and no head from elsewhere has a line that is left, or
enough of the witnesses that were given have signed none.`,
		Args: exit.Args(cobra.MaximumNArgs(1)),
		RunE: func(c *cobra.Command, words []string) error { return v.verify(c.Context(), words, o) },
	}
	f := c.Flags()
	f.StringArrayVar(&o.heads, "checkpoint", nil, headsUsage)
	f.StringVar(&o.key, "key", "", "a file with the log's public key, kept elsewhere (default key.pub beside the log)")
	o.signed.addFlags(c)
	f.BoolVar(&o.beyond, "require-head", false, "end with 4 unless a head from elsewhere was compared")
	f.BoolVar(&o.json, "json", false, "print the result as JSON")
	return c
}

func (v Env) verify(ctx context.Context, words []string, o verifyOptions) error {
	dir, err := v.logDir(words)
	if err != nil {
		return err
	}
	opts := proof.VerifyOptions{}
	witnesses, err := o.signed.given()
	if err != nil {
		return err
	}
	if len(words) == 0 {
		p, err := v.Paths()
		if err == nil {
			v.known(p, &witnesses)
			opts.Beside, err = state.SignedHeads(p.State)
		}
		if err != nil {
			return err
		}
	}
	if len(witnesses) > 0 {
		opts.Match = func(h tree.Head, signed string, seq uint64) { witnesses.Signed([]byte(signed), h.Size, seq) }
	}
	if opts.Key, err = keyText(o.key); err != nil {
		return err
	}
	if opts.Heads, err = v.kept(o.heads); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	progress := terminal.Show(v.Err, terminal.Soon, "reading the log")
	defer progress.End()
	opts.Progress = func(done, total int64) { progress.Say(fmt.Sprintf("%d of %d MiB of the log", done>>20, total>>20)) }
	found, err := proof.Verify(ctx, dir, opts)
	progress.End()
	if err != nil {
		return err
	}
	if err := report.Verified(v.Out, found, o.key == "", witnesses, o.signed.quorum, o.json); err != nil {
		return err
	}
	if err := o.signed.enough(witnesses); err != nil {
		return err
	}
	if (o.beyond || len(o.heads) > 0) && len(o.signed.witnesses) == 0 && found.Matched == 0 {
		return exit.With(exit.Unproved, errors.New("no head from elsewhere was compared: give one with --checkpoint"))
	}
	return nil
}

const headsUsage = "a file with heads that were kept elsewhere, among other text, a directory of such files, or - for standard input; can be repeated"

// kept returns the texts that names name: a file, all files below a directory as one, and standard input for -.
func (v Env) kept(names []string) (map[string]io.Reader, error) {
	all := map[string]io.Reader{}
	for _, name := range names {
		if name == "-" {
			all["standard input"] = v.In
			continue
		}
		var files []io.Reader
		err := filepath.WalkDir(name, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() && (path == name || entry.Type().IsRegular()) {
				files = append(files, &lazyFile{name: path}, strings.NewReader("\n"))
			}
			return err
		})
		if err == nil && files == nil {
			err = errors.New("has no file: name another directory")
		}
		if err != nil {
			return nil, exit.With(exit.Usage, fmt.Errorf("--checkpoint %s: %w", name, err))
		}
		all[name] = io.MultiReader(files...)
	}
	return all, nil
}

// lazyFile opens a file when it is read, and closes it at its end: there may be many.
type lazyFile struct {
	name string
	file *os.File
}

func (f *lazyFile) Read(b []byte) (n int, err error) {
	if f.file == nil {
		if f.file, err = os.Open(f.name); err != nil {
			return 0, err
		}
	}
	if n, err = f.file.Read(b); err != nil {
		f.file.Close()
	}
	return n, err
}

// logDir returns the directory of the log.
func (v Env) logDir(words []string) (string, error) {
	if len(words) > 0 {
		return words[0], nil
	}
	p, err := v.Paths()
	return p.Audit(), err
}

func keyText(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	b, err := bounded.File(name, maxHead)
	if err != nil {
		return "", exit.With(exit.Usage, fmt.Errorf("--key %s: %w", name, err))
	}
	return strings.TrimSpace(string(b)), nil
}

func (v Env) headCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "head [DIRECTORY]",
		Short: "print the log's last signed head, to keep it elsewhere",
		Long: `Prints the last signed head of the log, a checkpoint in the form of c2sp.org/tlog-checkpoint. Keep
copies where nobody who can write to this host can change them, and give them to scopefs audit verify.
The log signs a head each second while there are events, and when it is closed.`,
		Args: exit.Args(cobra.MaximumNArgs(1)),
		RunE: func(c *cobra.Command, words []string) error {
			dir, err := v.logDir(words)
			if err != nil {
				return err
			}
			head, _, err := proof.Head(dir)
			if err == nil {
				_, err = v.Out.Write(head)
			}
			return err
		},
	}
}

type proveOptions struct {
	session       string
	log           string
	heads, redact []string
}

func (v Env) proveCmd() *cobra.Command {
	var o proveOptions
	c := &cobra.Command{
		Use:   "prove [EVENT]",
		Short: "prove that an event, or those of a session, are in the log",
		Long: `Prints a proof, a small JSON file: the lines, the hashes that lead from each of them to a signed head,
the head, and the log's public key. It says nothing about other lines. scopefs audit check-proof checks
it without the log; docs/examples/check-proof does so without scopefs. The head is the last one, or an
earlier one that has these lines and the signatures of witnesses, which the proof has then. Those heads
are in {state}/heads, for a copy of the log, or beside them, in what --checkpoint names.

--redact leaves out the values of fields: path, target, rule, program, detail. The proof has commitments to
them, which do not tell them, but does show that a line has such a field. A rule can name a path.`,
		Args: exit.Args(cobra.MaximumNArgs(1)),
		RunE: func(c *cobra.Command, words []string) error { return v.prove(c.Context(), words, o) },
	}
	c.Flags().StringVar(&o.session, "session", "", "all events of this session")
	c.Flags().StringVar(&o.log, "log", "", "directory of a copy of the log")
	c.Flags().StringArrayVar(&o.heads, "checkpoint", nil, headsUsage)
	c.Flags().StringSliceVar(&o.redact, "redact", nil, "fields whose values to leave out, such as path,rule")
	return c
}

func (v Env) prove(ctx context.Context, words []string, o proveOptions) error {
	if (len(words) == 1) == (o.session != "") {
		return exit.Usagef("what: give the number of an EVENT, or --session ID")
	}
	opts := proof.ProveOptions{Session: o.session, Redact: o.redact}
	if len(words) == 1 {
		n, err := strconv.ParseUint(words[0], 10, 64)
		if err != nil || n == 0 {
			return exit.Usagef("%q: want the number of an event, as scopefs audit prints it", words[0])
		}
		opts.Seq = n
	}
	for _, field := range o.redact {
		if !slices.Contains(tree.Redactable(), field) {
			return exit.Usagef("--redact %q: want %s", field, strings.Join(tree.Redactable(), ", "))
		}
	}
	dir := o.log
	if dir == "" {
		p, err := v.Paths()
		if err == nil {
			dir = p.Audit()
			opts.Beside, err = state.SignedHeads(p.State)
		}
		if err != nil {
			return err
		}
	}
	var err error
	if opts.Heads, err = v.kept(o.heads); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	p, err := proof.Prove(ctx, dir, opts)
	if err != nil {
		return err
	}
	if len(o.heads) > 0 && strings.Count(p.Head, "\n— ") == 1 {
		fmt.Fprintln(v.Err, "scopefs: no witness has signed the head: --checkpoint has none of these lines that a witness has signed")
	}
	return report.JSON(v.Out, p)
}

func (v Env) checkProofCmd() *cobra.Command {
	var key string
	var signed witnessOptions
	c := &cobra.Command{
		Use:   "check-proof FILE",
		Short: "check what scopefs audit prove printed",
		Long: `Checks a proof and prints its lines. It needs no log. With --key it trusts that key alone, and says
"valid". Without, nothing is proved, and the exit status is 4: anybody can make the proof's own key. With
--witness it says how many of the witnesses have signed the head, too.

Exit status: 0 valid, 1 no proof, or not of these lines, 2 bad usage, 4 nothing is proved: no --key, or fewer
witnesses than the quorum.`,
		Args: exit.Args(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, words []string) error { return v.checkProof(words[0], key, signed) },
	}
	c.Flags().StringVar(&key, "key", "", "a file with the log's public key, kept elsewhere")
	signed.addFlags(c)
	return c
}

func (v Env) checkProof(name, key string, signed witnessOptions) error {
	witnesses, err := signed.given()
	if err != nil {
		return err
	}
	if key, err = keyText(key); err != nil {
		return err
	}
	text, err := bounded.File(name, maxProof)
	if err != nil {
		return exit.With(exit.Usage, err)
	}
	if err := report.Proof(v.Out, v.Err, name, text, key, witnesses); err != nil {
		return err
	}
	if err := signed.enough(witnesses); err != nil {
		return err
	}
	if key == "" {
		return exit.With(exit.Unproved, errors.New("not proved: anybody can make the proof's own key: give the log's with --key"))
	}
	return nil
}
