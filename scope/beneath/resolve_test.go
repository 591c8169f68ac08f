package beneath

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestResolveBeside: links lead to a directory beside the scope, also relative ones; nowhere else above.
func TestResolveBeside(t *testing.T) {
	root, _ := testRoot(t, "d/f", "f")
	root.Beside = func() (string, []string) { return "/home/me/proj", []string{"/home/me/lib", "/srv/deep/er"} }
	for text, want := range map[string]any{
		"/home/me/lib": Target{Rel: "/home/me/lib", System: true, Beside: true}, "../lib/x": Target{Rel: "/home/me/lib/x", System: true, Beside: true},
		"../../me/lib": Target{Rel: "/home/me/lib", System: true, Beside: true}, "../../../srv/deep/er/x": Target{Rel: "/srv/deep/er/x", System: true, Beside: true},
		"d/../../lib": Target{Rel: "/home/me/lib", System: true, Beside: true}, "../proj/f": ErrEscape, "../proj": ErrEscape,
		"/home/me/proj/d/f": ErrEscape, "/home/me/proj/../lib": ErrEscape, "../proj/../lib/x": ErrEscape,
		"../libx": ErrEscape, "..": ErrEscape, "../..": ErrEscape, "../../..": ErrEscape, "../../../..": ErrEscape, "../lib/../other": ErrEscape,
		"/home/me/lib/../other": ErrEscape, "/home/me/lib/../lib": ErrEscape, "/home/me": ErrEscape, "/home/me/projx": ErrEscape,
		"../../../usr/bin/x": ErrEscape, "../../../../../../etc/passwd": ErrEscape, "/srv/deep": ErrEscape,
	} {
		got, err := root.Follow("", text, nil)
		if wantErr, ok := want.(error); ok {
			assert.ErrorIs(t, err, wantErr, "%q", text)
		} else if assert.NoError(t, err, "%q", text) {
			assert.Equal(t, want, got, "%q", text)
		}
	}
}

func TestResolve(t *testing.T) {
	root, dir := testRoot(t,
		"d/e/f", "f",
		"rel => d/e/f", "d/up => ../f", "d/upup => ../../a10/secret", "abs => /etc/passwd",
		"alias => /workspace/d", "aliasout => /workspace/../etc/passwd", "aliaslike => /workspace2/f",
		"usr => /usr/bin/python3", "usrout => /usr/../etc/shadow", "alt => /etc/alternatives/editor", "altout => /etc/alternatives/../shadow",
		"lib => /lib", "libx => /libexec/x", "slashes => //etc//passwd",
		"proc => /proc/self/root/etc/passwd",
		"chain1 => chain2", "chain2 => chain3", "chain3 => /etc/passwd",
		"loop1 => loop2", "loop2 => loop1", "self => self",
		"dangling => d/none/deep", "danglingout => none/../../../x", "danglingback => none/../f",
		"viadir => dirlink/../f", "dirlink => d/e", "sysdir => /usr/lib", "viasys => sysdir/../../etc/shadow",
		"root => .", "rootup => ./..", "d/e/three => ../../../outside/secret", "empty2 => ./././f",
		"nondir => f/../f",
	)
	for rel, want := range map[string]any{
		"f":                                Target{Rel: "f"},
		"":                                 Target{Rel: ""},
		"./d//e/.":                         Target{Rel: "d/e"},
		"none":                             Target{Rel: "none", Missing: true},
		"rel":                              Target{Rel: "d/e/f"},
		"d/up":                             Target{Rel: "f"},
		"d/upup":                           ErrEscape,
		"abs":                              ErrEscape,
		"/etc/passwd":                      ErrEscape,
		"alias":                            Target{Rel: "d"},
		"alias/e/f":                        Target{Rel: "d/e/f"},
		"aliasout":                         ErrEscape,
		"aliaslike":                        ErrEscape,
		"usr":                              Target{Rel: "/usr/bin/python3", System: true},
		"usrout":                           ErrEscape,
		"alt":                              Target{Rel: "/etc/alternatives/editor", System: true},
		"altout":                           ErrEscape,
		"lib":                              Target{Rel: "/lib", System: true},
		"libx":                             ErrEscape,
		"slashes":                          ErrEscape,
		"proc":                             ErrEscape,
		"chain1":                           ErrEscape,
		"loop1":                            unix.ELOOP,
		"self":                             unix.ELOOP,
		"dangling":                         Target{Rel: "d/none/deep", Missing: true},
		"danglingout":                      ErrEscape,
		"danglingback":                     Target{Rel: "f"},
		"viadir":                           Target{Rel: "d/f", Missing: true}, // ".." is relative to the link's target
		"viasys":                           ErrEscape,
		"root":                             Target{Rel: ""},
		"rootup":                           ErrEscape,
		"..":                               ErrEscape,
		"d/../..":                          ErrEscape,
		"d/e/three":                        ErrEscape,
		"empty2":                           Target{Rel: "f"},
		"nondir":                           Target{Rel: "f"},
		"abs/more":                         ErrEscape,
		strings.Repeat("x", 300) + "/../f": Target{Rel: "f"},
	} {
		got, err := root.Resolve(rel)
		if wantErr, ok := want.(error); ok {
			assert.ErrorIs(t, err, wantErr, "%q", rel)
			continue
		}
		if assert.NoError(t, err, "%q", rel) {
			assert.Equal(t, want, got, "%q", rel)
		}
	}

	// A path with more than maxSteps components is ENAMETOOLONG.
	_, err := root.Resolve(strings.Repeat("d/../", maxSteps) + "f")
	assert.ErrorIs(t, err, unix.ENAMETOOLONG)

	// A path without a link has no link's text as its Target.
	makeTree(t, dir, "esc => ../..")
	for rel, rule := range map[string]Rule{"../x": RulePath, "/etc/passwd": RulePath, "esc/x": RuleLink} {
		var v *Violation
		_, err := root.Resolve(rel)
		require.ErrorAs(t, err, &v, rel)
		assert.Equal(t, rule, v.Rule, rel)
	}

	// A chain of 40 links resolves, a chain of 41 is ELOOP: path_resolution(7).
	makeTree(t, dir, "c0 => f")
	for i := 1; i <= 40; i++ {
		makeTree(t, dir, fmt.Sprintf("c%d => c%d", i, i-1))
	}
	got, err := root.Resolve("c39")
	require.NoError(t, err)
	assert.Equal(t, Target{Rel: "f"}, got)
	_, err = root.Resolve("c40")
	assert.ErrorIs(t, err, unix.ELOOP)
}

// FuzzFollow checks that no text resolves to a path that climbs above the root.
func FuzzFollow(f *testing.F) {
	for _, text := range []string{"a", "../f", "/workspace/x", "/usr/lib", "d/../../x", "none/..", "l/..", "//", strings.Repeat("../", 50)} {
		f.Add("d", text)
		f.Add("", text)
	}
	base := f.TempDir()
	t := &testing.T{}
	makeTree(t, base, "agents/a/d/e/", "agents/a/l => d/e", "agents/a/out => ../../x")
	root, err := OpenRoot(base, "agents/a")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, dir, text string) {
		if strings.ContainsRune(dir+text, 0) || strings.Contains(dir, "..") {
			return
		}
		got, err := root.Follow(strings.Trim(dir, "/"), text, nil)
		if err != nil {
			return
		}
		if got.System {
			assert.True(t, strings.HasPrefix(text, "/") || strings.Contains(text, "/"), text)
			assert.NotContains(t, "/"+got.Rel+"/", "/../")
			return
		}
		assert.False(t, strings.HasPrefix(got.Rel, "/"), "%q", got.Rel)
		for _, part := range components(got.Rel) {
			assert.NotEqual(t, "..", part)
		}
	})
}
