package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/internal/oneshot"
)

// yamlProcess parses the YAML of a repository by scopefs-yaml, a process without rights for each text: see [agents.Parser]. The text may
// end that process, and nothing else.
type yamlProcess struct{}

// foreignTime bounds a parse. The slowest text takes half a second of a processor.
const foreignTime = 10 * time.Second

// Parse implements [agents.Parser].
func (p yamlProcess) Parse(text []byte) (*yaml.Node, error) { return p.parse(text, foreignTime) }

func (yamlProcess) parse(text []byte, within time.Duration) (*yaml.Node, error) {
	cmd, err := child.Command(child.YAML)
	if err != nil {
		return nil, err
	}
	form, said := &bounded.Writer{Left: frontmatter.MaxForm + 1}, &bounded.Writer{Left: 1 << 10}
	cmd.Stdout, cmd.Stderr = form, said
	err = oneshot.Run(context.Background(), cmd, text, within)
	if _, stuck := errors.AsType[*oneshot.StuckError](err); stuck { // it may still write
		return nil, fmt.Errorf("%s: %w", child.YAML, err)
	}
	if err != nil {
		why, _, _ := strings.Cut(string(said.Text), "\n")
		return nil, fmt.Errorf("%s has not parsed it: %w: %s", child.YAML, err, cmp.Or(why, "repeat the command"))
	}
	top, err := frontmatter.ReadForm(form.Text)
	if _, wrong := errors.AsType[*frontmatter.Error](err); err != nil && !wrong {
		err = fmt.Errorf("%s: its answer %w: install the programs of one build", child.YAML, err)
	}
	return top, err
}
