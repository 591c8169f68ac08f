package config

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/foreign"
	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/internal/statictest"
)

func TestMain(m *testing.M) {
	statictest.Main(m, map[string]func() int{child.YAML: hostile})
}

// hostile is a parser that the text has taken over, if the text begins with "#hostile "; else it is that of the program.
func hostile() int {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return 1
	}
	what, is := strings.CutPrefix(string(text), "#hostile ")
	switch {
	case !is:
		in, out, err := os.Pipe()
		if err == nil {
			_, err = out.Write(text) // it has room for the texts here
		}
		if err != nil {
			return 1
		}
		out.Close()
		os.Stdin = in
		return foreign.Main()
	case what == "panics":
		panic("a fault of a library")
	case what == "hangs":
		time.Sleep(time.Hour)
	case what == "answers bytes":
		fmt.Print("\xff\xff\xff\xff\xff\xff\xff\xff\xff")
	case what == "answers much":
		for range 64 {
			_, _ = os.Stdout.Write(bytes.Repeat([]byte("m"), 1<<20))
		}
	case what == "says much":
		_, _ = os.Stderr.Write(bytes.Repeat([]byte("x"), 1<<20))
		return 1
	}
	return 0
}

// TestForeign: scopefs-yaml returns what this process would parse.
func TestForeign(t *testing.T) {
	for _, text := range []string{"tools: [read_file]\nview:\n  access: read\n", "", "# nothing\n", "a: [\n", "a: &x b\n", "a: b\n---\nc: d\n"} {
		want, wrong := frontmatter.Parse([]byte(text))
		got, err := yamlProcess{}.parse([]byte(text), time.Minute)
		assert.Equal(t, fmt.Sprint(wrong), fmt.Sprint(err), text)
		assert.Equal(t, frontmatter.Form(want, wrong), frontmatter.Form(got, err), text)
	}
}

// TestForeignHostile: a parser that was taken over, or has a fault, ends with its text: nothing is parsed, and the error is not the
// text's. Its memory and its answer are bounded.
func TestForeignHostile(t *testing.T) {
	for what, want := range map[string]string{
		"panics":        "scopefs-yaml has not parsed it: exit status 2: panic: a fault of a library",
		"answers bytes": "scopefs-yaml: its answer is no canonical form",
		"answers much":  "scopefs-yaml: its answer is no canonical form",
		"says much":     "scopefs-yaml has not parsed it: exit status 1: xxx",
		"ends":          "scopefs-yaml: its answer is no canonical form",
	} {
		top, err := yamlProcess{}.parse([]byte("#hostile "+what), time.Minute)
		assert.Nil(t, top, what)
		require.ErrorContains(t, err, want, what)
		assert.Less(t, len(err.Error()), 4<<10, what)
		var wrong *frontmatter.Error
		assert.NotErrorAs(t, err, &wrong, what)
	}
	_, err := yamlProcess{}.parse([]byte("#hostile hangs"), 100*time.Millisecond)
	assert.ErrorContains(t, err, "did not end within 100ms")
}

// TestRepositoryText: the stores that a trusted file names are enabled, and those of a text that scopefs-yaml does not parse are not.
func TestRepositoryText(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	for text, want := range map[string]bool{"stores: {kv: {}}\n": true, "#hostile panics": false} {
		h, err := Load(Paths{Base: filepath.Join(t.TempDir(), "x"), Proposal: text}, Checks{})
		require.NoError(t, err, text)
		has := h.Stores.KV != nil
		assert.Equal(t, want, has, text)
	}
}
