// Package answers tests that the answer of a call, and the last lines of scopefs run, list what the command has changed.
package answers

import (
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/scope/effect"
)

func TestMain(m *testing.M) {
	harness.Roles["static"], harness.Roles["mapped"], harness.Roles["server"] = static, mapped, server
	harness.Main(m)
}

// static does what its words say: NAME=TEXT writes a file, NAME+ leaves one open for writing, and any other word is a file that it
// removes.
func static(words []string) error {
	for _, word := range words {
		name, text, writes := strings.Cut(word, "=")
		err := error(nil)
		if open, ok := strings.CutSuffix(word, "+"); ok {
			_, err = unix.Open(open, unix.O_WRONLY|unix.O_APPEND, 0)
		} else if writes {
			err = os.WriteFile(name, []byte(text), 0o644)
		} else {
			err = os.Remove(name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mapped writes to a file through a shared mapping, after its descriptor is closed.
func mapped(words []string) error {
	fd, err := unix.Open(words[0], unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	memory, err := unix.Mmap(fd, 0, 4, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		return err
	}
	copy(memory, "mapd")
	return unix.Munmap(memory)
}

// answer is what a caller has from one call.
type answer struct {
	effects effect.Effects
	text    string // all of it
	told    string // the last text
}

// call calls a tool.
func call(t *testing.T, u *harness.User, tool string, args map[string]any) answer {
	t.Helper()
	res, err := u.Session.CallTool(u.Soon(), &mcp.CallToolParams{Name: tool, Arguments: args})
	require.NoError(t, err)
	var a answer
	for _, c := range res.Content {
		a.told = c.(*mcp.TextContent).Text
		a.text += a.told
	}
	require.False(t, res.IsError, a.text)
	var out struct {
		Effects *effect.Effects `json:"effects"`
	}
	text, err := json.Marshal(res.StructuredContent)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &out))
	if out.Effects == nil { // of a tool without a schema
		text, err = json.Marshal(res.Meta["scopefs/effects"])
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &out.Effects))
	}
	require.NotNil(t, out.Effects, "%s: %s", tool, text)
	a.effects = *out.Effects
	return a
}

// bash runs a command.
func bash(t *testing.T, u *harness.User, command string) answer {
	t.Helper()
	return call(t, u, "bash", map[string]any{"command": command})
}

// undoes returns the call that a text names for undo.
func undoes(t *testing.T, text string) string {
	t.Helper()
	found := regexp.MustCompile(`undo call=([a-z2-7]{13})`).FindStringSubmatch(text)
	require.NotNil(t, found, text)
	return found[1]
}

// paths are the paths of a list.
func paths(list []effect.Object) (all []string) {
	for _, o := range list {
		all = append(all, o.Path)
	}
	return all
}
