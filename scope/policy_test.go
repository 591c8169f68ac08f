package scope

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// compile compiles lines of the form "pattern: access". The line "access: read"
// sets the default.
func compile(t testing.TB, lines ...string) *Policy {
	t.Helper()
	var spec PolicySpec
	for _, line := range lines {
		i := strings.LastIndex(line, ": ")
		var a Access
		require.NoError(t, a.UnmarshalText([]byte(line[i+2:])))
		if line[:i] == "access" {
			spec.Access = a
			continue
		}
		spec.Paths = append(spec.Paths, PathRule{Pattern: line[:i], Access: a})
	}
	p, err := Compile(spec)
	require.NoError(t, err)
	return p
}

func TestPolicyFile(t *testing.T) {
	example := []string{"reference/**: read", "**/.env: hide"}
	readOnly := []string{"access: read", "out/**: write"}
	cases := map[string]struct {
		policy []string
		rel    string
		rule   string // its access is the expected one
	}{
		"no rules":                        {nil, "a/b", "access: write"},
		"root":                            {example, "", "access: write"},
		"default":                         {example, "src/main.go", "access: write"},
		"below a directory":               {example, "reference/a/b", "reference/**: read"},
		"dir/** covers dir":               {example, "reference", "reference/**: read"},
		"not a longer name":               {example, "reference2", "access: write"},
		"anchored":                        {example, "x/reference", "access: write"},
		"most restrictive wins":           {example, "reference/.env", "**/.env: hide"},
		"**/ matches at the root":         {example, ".env", "**/.env: hide"},
		"below a hidden directory":        {example, "a/.env/b", "**/.env: hide"},
		"case counts":                     {example, ".ENV", "access: write"},
		"no slash is anchored":            {[]string{".env: hide"}, "a/.env", "access: write"},
		"opened":                          {readOnly, "out/a", "out/**: write"},
		"opened itself":                   {readOnly, "out", "out/**: write"},
		"not opened":                      {readOnly, "a", "access: read"},
		"root is not opened":              {readOnly, "", "access: read"},
		"opened and hidden":               {append(readOnly, "out/*.key: hide"), "out/a.key", "out/*.key: hide"},
		"order does not count":            {[]string{"a: hide", "a/b: read"}, "a/b", "a: hide"},
		"same path twice":                 {[]string{"a: read", "a: hide"}, "a", "a: hide"},
		"of equals the first":             {[]string{"a: read", "a/**: read"}, "a", "a: read"},
		"everything":                      {[]string{"**: read"}, "", "**: read"},
		"everything below":                {[]string{"**: read"}, "a/b", "**: read"},
		"* is not the root":               {[]string{"*: hide"}, "", "access: write"},
		"* covers all in it":              {[]string{"*: hide"}, "a/b", "*: hide"},
		"in between":                      {[]string{"a/**/b: read"}, "a/x/y/b/c", "a/**/b: read"},
		"in between nothing":              {[]string{"a/**/b: read"}, "a/b", "a/**/b: read"},
		"another try after **":            {[]string{"**/a/b: read"}, "a/a/b", "**/a/b: read"},
		"two **":                          {[]string{"**/a/**/b*: read"}, "x/a/b/a/bc", "**/a/**/b*: read"},
		"glob name":                       {[]string{"**/*.pem: hide"}, "a/b.pem/c", "**/*.pem: hide"},
		"glob directory and ** cover it":  {[]string{"a*/**: hide"}, "a", "a*/**: hide"},
		"braces":                          {[]string{"**/{.env,.npmrc}: hide"}, "a/.npmrc", "**/{.env,.npmrc}: hide"},
		"braces with slashes":             {[]string{"{a/b,c}/d: hide"}, "a/b/d", "{a/b,c}/d: hide"},
		"nested braces":                   {[]string{"{a,b{c,d}}: hide"}, "bd", "{a,b{c,d}}: hide"},
		"brace in a class":                {[]string{"a[{]b: hide"}, "a{b", "a[{]b: hide"},
		"class":                           {[]string{"[a-c]x: hide"}, "bx", "[a-c]x: hide"},
		"class does not match a slash":    {[]string{"access: read", "a[^x]b: write"}, "a/b", "access: read"},
		"escaped":                         {[]string{`\*: hide`}, "*", `\*: hide`},
		"escaped is no wildcard":          {[]string{`\*: hide`}, "a", "access: write"},
		"wildcards in a name are letters": {[]string{"abc: hide"}, "a*", "access: write"},
		"backslash in a name":             {[]string{`**/*: read`}, `\`, `**/*: read`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			p := compile(t, c.policy...)
			access := c.rule[strings.LastIndex(c.rule, " ")+1:]
			read, write := p.File(OpOpen, c.rel), p.File(OpOpenWrite, c.rel)
			for _, d := range []Decision{read, write} {
				assert.Equal(t, c.rule, d.Rule)
				assert.Equal(t, access, d.Access.String())
				assert.Equal(t, access == "hide", d.Hidden)
			}
			assert.Equal(t, access != "hide", read.Allow, "read")
			assert.Equal(t, access == "write", write.Allow, "write")
		})
	}
}

// A byte that is not UTF-8 must neither end a match early nor consume the slash
// after it. Here it is a prefix of a multi-byte rune.
func TestPolicyFileBytes(t *testing.T) {
	for _, odd := range []string{"\xff", "\xe4", "\xe4\xbd", "\xf0\x9f\x98", "é", "\n", "a\xffb"} {
		for pattern, rels := range map[string][]string{
			"**/.env":     {odd + "/.env", "a/" + odd + "/.env", ".env/" + odd},
			"*/secret":    {odd + "/secret", odd + "/secret/" + odd},
			"**/*.key":    {odd + ".key", odd + "/" + odd + ".key", odd + "/a.key"},
			"a/**/b*":     {"a/" + odd + "/b", "a/b" + odd, "a/" + odd + "/b" + odd + "/c"},
			"**/a[!x]*/b": {odd + "/a" + odd + "/b"},
		} {
			p := compile(t, pattern+": hide")
			for _, rel := range rels {
				assert.True(t, p.File(OpLookup, rel).Hidden, "%q should hide %q", pattern, rel)
			}
		}
	}
	p := compile(t, "a?c: hide")
	assert.True(t, p.File(OpLookup, "a\xffc").Hidden, "? is one odd byte")
	assert.False(t, p.File(OpLookup, "a\xff\xfec").Hidden, "? is not two of them")
	assert.False(t, p.File(OpLookup, "a/c").Hidden)
}

func TestPolicyMove(t *testing.T) {
	cases := map[string]struct {
		policy []string
		rel    string
		rule   string // the rule that prevents the move
	}{
		"no rules":                      {nil, "a", ""},
		"the root":                      {nil, "", "root of the view"},
		"portable":                      {[]string{"**/.env: hide", "**/*.pem/**: hide"}, "a", ""},
		"below":                         {[]string{"a/b/c: read"}, "a", "a/b/c: read"},
		"below that":                    {[]string{"a/b/c: read"}, "a/b", "a/b/c: read"},
		"beside":                        {[]string{"a/b/c: read"}, "a/x", ""},
		"the rule's own path":           {[]string{"a/b: read"}, "a/b", ""},
		"below the rule's path":         {[]string{"a/b: read"}, "a/b/c", ""},
		"glob below":                    {[]string{"a/*/c: read"}, "a/x", "a/*/c: read"},
		"glob beside":                   {[]string{"a/*/c: read"}, "b/x", ""},
		"glob deeper":                   {[]string{"a/*/c: read"}, "a/x/y", ""},
		"** inside":                     {[]string{"a/**/c: read"}, "a/x/y", "a/**/c: read"},
		"** and two names":              {[]string{"**/a/b: read"}, "x/a", "**/a/b: read"},
		"** and two names elsewhere":    {[]string{"**/a/b: read"}, "a/x", ""},
		"** and two names, matched":     {[]string{"**/a/b: read"}, "x/a/b", ""},
		"** and two names in one brace": {[]string{"**/{a,b/c}: read"}, "x/b", "**/{a,b/c}: read"},
		"** and three names":            {[]string{"**/a/b/c: read"}, "x/a/b", "**/a/b/c: read"},
		"** and three names, two apart": {[]string{"**/a/b/c: read"}, "a/x/b", ""},
		"** and a glob":                 {[]string{"**/a/*.c: read"}, "x/a", "**/a/*.c: read"},
		"** and a glob elsewhere":       {[]string{"**/a/*.c: read"}, "x/b", ""},
		"two **":                        {[]string{"**/a/**/b: read"}, "x/a/y", "**/a/**/b: read"},
		"two ** elsewhere":              {[]string{"**/a/**/b: read"}, "x/y", ""},
		"opened itself":                 {[]string{"access: read", "out/**: write"}, "out", ""},
		"in what is opened":             {[]string{"access: read", "out/**: write"}, "out/a", ""},
		"opened by what goes on below":  {[]string{"access: read", "a/**/b: write"}, "a/b/c", ""},
		"opened below":                  {[]string{"access: read", "a/out/**: write"}, "a", "a/out/**: write"},
		"closed in what is opened":      {[]string{"access: read", "a: write", "a/b/c: read"}, "a/b", "a/b/c: read"},
		"write where all is":            {[]string{"a/b: write", "a/*/c: write"}, "a", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d := compile(t, c.policy...).Move(c.rel)
			assert.Equal(t, c.rule == "", d.Allow)
			if c.rule != "" {
				assert.Equal(t, c.rule, d.Rule)
			}
		})
	}
}

// TestPolicyProtect: Protect matches every spelling that a file system without case takes for
// the name. What is below a name of it has no second name: no move, no link.
func TestPolicyProtect(t *testing.T) {
	p, err := Compile(PolicySpec{Protect: []Protect{
		{Name: "a", Paths: []string{"**/.vscode", "**/.config/mise", "**/*.Code-Workspace", "**/classify.*", "ci/Deploy.sh", "**/x/y/z"}},
	}})
	require.NoError(t, err)
	for rel, free := range map[string]bool{
		".vscode": false, "a/.VSCode/tasks.json": false, ".vs\u200ccode": false, ".vﬅcode": true, ".vſcode": false, ".vs": true, "vscode": true,
		"a/.config/mise": false, "a/.CONFIG/Mise/config.toml": false, ".conﬁg/mise": false, ".config/misc": true, "mise": true, ".config/a/mise": true,
		"A.CODE-WORKSPACE": false, "claßify.x": false, "CLASSIFY.Y": false, "ci/deploy.sh": false, "CI/DEPLOY.SH": false, "a/ci/deploy.sh": true,
		"é/\xff.VSCODE": true, "\xff/.VSCODE": false, "x/y": true, "a/x/y/z/b": false,
	} {
		assert.Equal(t, free, p.File(OpOpenWrite, rel).Allow, rel)
		assert.True(t, p.File(OpOpen, rel).Allow, rel)
		assert.Equal(t, free, p.Remedy(OpOpenWrite, rel) == "", rel)
	}
	for rel, free := range map[string]bool{
		"a": true, ".config": false, "a/.Config": false, ".config/a": true, "a/x": false, "a/x/y": false, "y": true, "ci": false, "CI": false, "a/ci": true, "a/.vscode": true,
	} {
		assert.Equal(t, free, p.Move(rel).Allow, rel)
		assert.Equal(t, free, p.RemedyMove(rel) == "", rel)
	}
	for rel, free := range map[string]bool{".config": false, "a/X": false, "ci": false, "a": true} {
		assert.Equal(t, free, p.Link(rel, "", "elsewhere").Allow, rel)
	}
	assert.False(t, p.Link("a", "", "b/.VSCODE/tasks.json").Allow)
}

func TestPolicyLinked(t *testing.T) {
	cases := map[string]struct {
		hardlinks   Hardlinks
		nlink       uint64
		read, write bool
	}{
		"default":       {"", 2, true, true},
		"allow":         {HardlinksAllow, 2, true, true},
		"read":          {HardlinksRead, 2, true, false},
		"deny":          {HardlinksDeny, 2, false, false},
		"deny one name": {HardlinksDeny, 1, true, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			p, err := Compile(PolicySpec{Hardlinks: c.hardlinks, Paths: []PathRule{{Pattern: "h", Access: Hide}}})
			require.NoError(t, err)
			assert.Equal(t, c.read, p.Linked(OpOpen, "a", c.nlink).Allow)
			write := p.Linked(OpOpenWrite, "a", c.nlink)
			assert.Equal(t, c.write, write.Allow)
			if !c.write {
				assert.Equal(t, "hardlinks: "+string(c.hardlinks), write.Rule)
			}
			assert.True(t, p.Linked(OpStat, "a", c.nlink).Allow, "names are no secret")
			assert.True(t, p.Linked(OpOpen, "h", c.nlink).Hidden, "hide comes first")
		})
	}
}

func TestZeroPolicyAllowsNothing(t *testing.T) {
	assert.False(t, new(Policy).File(OpLookup, "a").Allow)
	assert.False(t, new(Policy).Move("a").Allow)
	assert.False(t, new(Policy).Linked(OpOpen, "a", 2).Allow)
}

func TestCompileErrors(t *testing.T) {
	cases := map[string]struct{ pattern, want string }{
		"empty":               {"", "write ** for everything"},
		"absolute":            {"/a", "drop it"},
		"absolute in braces":  {"{/a,b}", "drop it"},
		"dot":                 {"./a", "from the root of the view"},
		"dot dot":             {"a/../b", "from the root of the view"},
		"escaped dot dot":     {`a/\.\./b`, "from the root of the view"},
		"empty name":          {"a//b", "remove the slash"},
		"trailing slash":      {"a/", "remove the slash"},
		"empty alternative":   {"a/{,b}", "remove the slash"},
		"open class":          {"a[b", "complete it"},
		"open brace":          {"a{b", "complete it"},
		"closing brace":       {"a}", "complete it"},
		"trailing backslash":  {`a\`, "complete it"},
		"slash in class":      {"a[b/c]", "write it outside"},
		"escaped slash":       {`a\/b`, "write it outside"},
		"NUL":                 {"a\x00", "remove it"},
		"not UTF-8":           {"a\xff", "write ?"},
		"U+FFFD":              {"a\ufffd*", "write ?"},
		"** in a name":        {"a/**.txt", "write * for a part"},
		"root hidden":         {"**", "write * to hide"},
		"root hidden in many": {"{a,**/**}", "write * to hide"},
		"long":                {strings.Repeat("a", MaxPattern+1), "write several"},
		"many alternatives":   {strings.Repeat("{a,b}", 9), "fewer braces"},
		"many empty ones":     {"a" + strings.Repeat("{,}", 300), "fewer braces"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := Compile(PolicySpec{Paths: []PathRule{{Pattern: c.pattern, Access: Hide}}})
			require.Error(t, err)
			assert.Contains(t, err.Error(), fmt.Sprintf("pattern %q: ", c.pattern))
			assert.Contains(t, err.Error(), c.want)
			assert.NotContains(t, err.Error(), "\n")
		})
	}
	for name, spec := range map[string]PolicySpec{
		"hide by default":   {Access: Hide},
		"no access":         {Access: 9},
		"no rule access":    {Paths: []PathRule{{Pattern: "a", Access: 9}}},
		"unknown hardlinks": {Hardlinks: "never"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Compile(spec)
			assert.ErrorContains(t, err, "want ")
		})
	}
	many := make([]PathRule, maxRules+1)
	for i := range many {
		many[i].Pattern = fmt.Sprint(i)
	}
	_, err := Compile(PolicySpec{Paths: many})
	assert.ErrorContains(t, err, "limit of 10000 rules")
}

func TestPolicySpecSurvivesJSON(t *testing.T) {
	spec := PolicySpec{Access: Read, Hardlinks: HardlinksDeny, Paths: []PathRule{
		{Pattern: "out/**", Access: Write}, {Pattern: `<é>&"\*"/[!a]`, Access: Read}, {Pattern: "**/.env", Access: Hide},
	}}
	p, err := Compile(spec)
	require.NoError(t, err)
	text, err := json.Marshal(p.spec)
	require.NoError(t, err)
	assert.Contains(t, string(text), `"access":"hide"`)
	var got PolicySpec
	require.NoError(t, json.Unmarshal(text, &got))
	assert.Equal(t, spec, got)

	assert.Error(t, json.Unmarshal([]byte(`{"access":"deny"}`), &got))
	assert.Equal(t, spec, p.spec, "the policy changes when its spec does")
}

func BenchmarkPolicyFile(b *testing.B) {
	shapes := map[string]string{
		"literal": "dir%d/sub/file: read",
		"below":   "dir%d/sub/**: hide",
		"name":    "**/secret%d: hide",
		"rooted":  "dir%d/*.txt: read", // a glob, indexed by its first component
		"glob":    "**/*.secret%d: hide",
	}
	for shape, format := range shapes {
		for _, n := range []int{10, 1000} {
			b.Run(fmt.Sprintf("%s-%d", shape, n), func(b *testing.B) {
				lines := make([]string, n)
				for i := range lines {
					lines[i] = fmt.Sprintf(format, i)
				}
				p := compile(b, lines...)
				b.ReportAllocs()
				for b.Loop() {
					if !p.File(OpOpenWrite, "dir7/lib/pkg/internal/main.go").Allow {
						b.Fatal("refused")
					}
				}
			})
		}
	}
}

// TestPolicySeal: a sealed path gives attributes alone, above read and below hide.
func TestPolicySeal(t *testing.T) {
	p := compile(t, "**/.env: seal", "a/.env: read", "b/.env: hide")
	for op := range opCount {
		d := p.File(op, "a/.env/x")
		assert.Equal(t, op == OpLookup || op == OpStat, d.Allow, op)
		assert.False(t, d.Hidden)
		assert.Equal(t, Seal, d.Access)
	}
	assert.True(t, p.File(OpLookup, "b/.env").Hidden)
	assert.False(t, p.Linked(OpLinkFrom, "a/.env", 1).Allow)
	_, err := Compile(PolicySpec{Paths: []PathRule{{Pattern: "**", Access: Seal}}})
	assert.ErrorContains(t, err, "hides the root")
}
