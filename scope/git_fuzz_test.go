package scope

import (
	"bytes"
	"hash/fnv"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
)

// gitTokens are parts of configs. FuzzGitConfig builds a config of them and of single bytes.
// In a config @RUN is a program outside of the repositories, @OUT a repository there.
var gitTokens = []string{
	"[core]", "[CoRe]", "[core \"x\"]", "[core.x]", "[ core ]", "[core", "]", "[remote \"o\"]", "[remote \"", "[Remote.o]", "[branch \"main\"]", "[submodule \"sub\"]", "[url \"ext::@RUN \"]",
	"[alias]", "[filter \"f\"]", "[diff \"d\"]", "[merge \"m\"]", "[include]", "[includeIf \"gitdir:/\"]", "[credential]", "[gpg]", "[gpg \"ssh\"]", "[interactive]", "[sequence]", "[pager]",
	"[protocol \"ext\"]", "[fetch]", "[extensions]", "[trailer \"t\"]", "[log]", "[init]", "[http]", "[man \"x\"]", "[browser \"x\"]", "[sendemail]", "[user]", "[rebase]", "[push]", "[pull]", "[index]",
	"[rerere]", "[commit]", "[difftool \"x\"]", "[web]", "[uploadpack]", "[worktree]", "[safe]", "[status]", "[feature]", "[bundle]", "[receive]", "[transfer]", "[author]", "[committer]", "[remote]",
	"fsmonitor", "fsMonitor", "hooksPath", "worktree", "attributesFile", "excludesFile", "editor", "pager", "askPass", "sshCommand", "gitProxy", "alternateRefsCommand", "bare", "fileMode",
	"repositoryformatversion", "sparseCheckout", "url", "pushurl", "fetch", "uploadpack", "receivepack", "vcs", "proxy", "tagOpt", "mirror", "promisor", "partialclonefilter", "partialClone",
	"remote", "pushRemote", "merge", "rebase", "description", "update", "branch", "active", "ignore", "insteadOf", "pushInsteadOf", "path", "clean", "smudge", "process", "required", "command",
	"textconv", "external", "driver", "helper", "program", "defaultKeyCommand", "allow", "bundleURI", "recurseSubmodules", "worktreeConfig", "objectFormat", "refStorage", "showSignature", "gpgSign",
	"templateDir", "cookieFile", "sslCert", "diffFilter", "status", "defaultBranch", "email", "name", "default", "pushDefault", "packObjectsHook", "st", "tool", "version",
	" = ", "=", " ", "\t", "\n", "\r", "\r\n", "\x00", "\\\n", "\\", "\"", "\\\"", "\\\\", "\\n", "\\t", "\\b", "\\q", "#", ";", "!", "~", "~/", "-", "--upload-pack=@RUN", "-oProxyCommand=@RUN", "\ufeff", "\v", "\f", "\u00a0",
	"@RUN", "!@RUN", "@OUT", "../../canary-outside", "../../../canary-outside", "../", "..", "/", ".", "x/../../..", "x", "origin", "ext::@RUN", "foo::bar", "ext::", "::", "file://@OUT", "File://", "https://", "hg://x", "git+ssh://x",
	"ssh://-oProxyCommand=@RUN/x", "host:", "-x:y", "true", "false", "0", "1", "2", "refs/heads/main", "+refs/heads/*:refs/remotes/x/*", "/workspace", "/workspace/../", ":(top)", ":/", "sha256", "reftable",
	"\"\n[core]\n\tfsmonitor = @RUN\n", "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz",
}

// gitSeeds are configs whose form or values are odd.
var gitSeeds = []string{
	"[core]\n\tbare = false\n\tfileMode\n", "[a]\nb = \"c ; d\"\n", "[a \"b \\\\ \\\" c\"]\nd = e\\\\f\n", "[a]\n b = c\td \n", "[A-b \"C\"]\nD-1 = \" e \"\n", "[a]\nb = c#d\n", "[a]b=c\n",
	"[a \"b\"]\n\n\n;x\n#y\n z = \\\"\n", "[a]\nb =\n", "[a]\nb = \\t\\n\\b\n", "[a  \"b\"]\nc=d\n", "[a]\nb=c]\n", "[ a]\nb=c\n", "[a\t\"b\"]\nc=d", "[a \"\"]\nx=y\n", "[a]\nb\n[c]\n", "[a]\nb = \"\"\n", "[a]\nb = \"c\"d\n",
	"[a]\nb c\n", "[a]\nb = c \"d\"\n", "[core]\n\tfsmonitor = @RUN\n", "[core] fsmonitor = @RUN\n", "[CORE]\nFSMONITOR=@RUN", "[core]\n\tbare = false \\\n\tfsmonitor = @RUN\n", "# x \\\n[core]\n\tfsmonitor = @RUN\n",
	"[core \"x]\n[core]\n\tfsmonitor = @RUN\n", "[core]\n\tbare = false\r[core]\n\tfsmonitor = @RUN\n", "\ufeff[core]\n\tfsmonitor = @RUN\n", "[core]\n\tbare\n= false\n\tfsmonitor = @RUN\n", "[core]\n\tbare = \"x\n\tfsmonitor = @RUN\n",
	"[alias]\n\tst = !@RUN\n", "[remote \"o\"]\n\turl = ext::@RUN\n\tfetch = x\n", "[remote \"o\"]\n\turl = ../../canary-outside\n\tfetch = +refs/heads/*:refs/remotes/x/*\n", "[remote \"../../canary-outside\"]\n\tfetch = +refs/heads/*:refs/remotes/x/*\n",
	"[remote \"ext::@RUN\"]\n\tfetch = x\n", "[remote \"o\"]\n\turl = x\n\tuploadpack = @RUN\n", "[remote \"--upload-pack=@RUN\"]\n\tfetch = x\n", "[remote \"o\"]\n\tvcs = ext\n\turl = @RUN\n", "[url \"ext::@RUN \"]\n\tinsteadOf = x\n[remote \"o\"]\n\turl = x\n",
	"[protocol \"ext\"]\n\tallow = always\n", "[branch \"main\"]\n\tremote = @OUT\n\tmerge = refs/heads/main\n", "[branch \"main\"]\n\tremote = ../../canary-outside\n\tmerge = refs/heads/main\n", "[submodule \"sub\"]\n\tupdate = !@RUN\n\turl = @OUT\n\tactive = true\n",
	"[include]\n\tpath = @OUT/.git/config\n", "[includeIf \"gitdir:/\"]\n\tpath = @OUT/.git/config\n", "[core]\n\tworktree = ../../../../../canary-outside\n", "[core]\n\tworktree = ../../..\n", "[filter \"f\"]\n\tclean = @RUN\n\tsmudge = @RUN\n", "[diff \"d\"]\n\ttextconv = @RUN\n\tcommand = @RUN\n",
	"[diff]\n\texternal = @RUN\n", "[merge \"m\"]\n\tdriver = @RUN\n", "[credential]\n\thelper = !@RUN\n[remote \"o\"]\n\turl = https://127.0.0.1:1/x\n", "[gpg]\n\tprogram = @RUN\n[commit]\n\tgpgSign = true\n", "[gpg]\n\tformat = ssh\n[gpg \"ssh\"]\n\tdefaultKeyCommand = @RUN\n[commit]\n\tgpgSign = true\n",
	"[core]\n\thooksPath = @OUT/hooks\n", "[core]\n\tpager = @RUN\n[pager]\n\tlog = @RUN\n", "[core]\n\tsshCommand = @RUN\n[remote \"o\"]\n\turl = ssh://127.0.0.1/x\n", "[core]\n\tgitProxy = @RUN\n[remote \"o\"]\n\turl = git://127.0.0.1:1/x\n", "[core]\n\tattributesFile = @OUT/secret\n\texcludesFile = @OUT/secret\n",
	"[extensions]\n\tpartialClone = o\n[core]\n\trepositoryformatversion = 1\n[remote \"o\"]\n\turl = ext::@RUN\n\tpromisor = true\n", "[extensions]\n\tworktreeConfig = true\n", "[extensions]\n\trefStorage = files://@OUT\n", "[fetch]\n\tbundleURI = file://@OUT/secret\n",
	"[trailer \"t\"]\n\tcommand = @RUN\n", "[log]\n\tshowSignature = true\n[gpg]\n\tprogram = @RUN\n", "[interactive]\n\tdiffFilter = @RUN\n", "[sequence]\n\teditor = @RUN\n", "[http]\n\tcookieFile = @OUT/secret\n\tproxy = http://127.0.0.1:1\n\tsslCert = @OUT/secret\n", "[uploadpack]\n\tpackObjectsHook = @RUN\n",
	"[user]\n\tname = a\n\temail = b\n[branch \"main\"]\n\tdescription = \"one\\n\\ntwo\\n\"\n", "[submodule]\n\tactive = :(top)../..\n\trecurse = true\n", "[remote \"o\"]\n\turl = x\\\n../..\n", "[remote \"o\"]\n\turl = -oProxyCommand=@RUN:x\n", "[remote \"o\"]\n\turl = host:-x\n", "[remote \"o\"]\n\turl = [-oProxyCommand=@RUN]:x\n",
	"[pull]\n\trebase = interactive\n[rebase]\n\tautosquash = true\n", "[core]\n\tsharedrepository = 0777\n", "[index]\n\tversion = 4\n\tsparse = true\n[core]\n\tsparsecheckout = true\n", "[push]\n\tdefault = current\n[remote]\n\tpushdefault = @OUT\n",
	"[remote \"o\"]\n\turl = -\n", "[remote \"-1\"]\n\tfetch = x\n", // found by fuzzing
}

// gitRecipe returns the input of FuzzGitConfig that makes a text.
func gitRecipe(text string) (recipe []byte) {
	for text != "" {
		best := -1
		for i, token := range gitTokens {
			if strings.HasPrefix(text, token) && (best < 0 || len(token) > len(gitTokens[best])) {
				best = i
			}
		}
		if best >= 0 {
			recipe, text = append(recipe, byte(best)), text[len(gitTokens[best]):]
		} else {
			recipe, text = append(recipe, 255, text[0]), text[1:]
		}
	}
	return recipe
}

func gitText(recipe []byte) string {
	var b strings.Builder
	for i := 0; i < len(recipe); i++ {
		if c := int(recipe[i]); c < len(gitTokens) {
			b.WriteString(gitTokens[c])
		} else if i++; i < len(recipe) {
			b.WriteByte(recipe[i])
		}
	}
	return b.String()
}

// gitRepositories are the configs that FuzzGitConfig writes, with the directory in which git
// resolves a path of that config.
var gitRepositories = []struct{ config, tree string }{
	{".git/config", ""}, {"a/.git/config", "a"}, {"a/b/.git/config", "a/b"}, {"x.git/config", "x.git"}, {"a/.git/modules/sub/config", "a/sub"}, {"a/.git/config.worktree", "a"},
}

// gitHarmless are the keys that git-config(1) describes as numbers, switches, names that git
// records, or texts from a fixed list. Every other key is judged by gitValues or is dangerous.
var gitHarmless = regexp.MustCompile(`^(core\.(abbrev|autocrlf|bare|bigfilethreshold|compression|eol|filemode|ignorecase|logallrefupdates|longpaths|precomposeunicode|quotepath|repositoryformatversion|` +
	`safecrlf|sharedrepository|sparsecheckout|sparsecheckoutcone|symlinks|untrackedcache)|extensions\.(objectformat|refstorage|relativeworktrees|worktreeconfig)|index\.(sparse|version)|` +
	`advice\.[a-z]*|color\.ui|diff\.algorithm|gc\.auto|http\.(postbuffer|version)|lfs\.repositoryformatversion|maintenance\.auto|push\.followtags|` +
	`remote\.[^\n]*\.(fetch|gh-resolved|mirror|partialclonefilter|prune|tagopt)|branch\.[^\n]*\.(description|gh-merge-base|merge|rebase)|branch\.autosetup(merge|rebase)|submodule\.[^\n]*\.(active|branch|ignore|shallow)|submodule\.(active|recurse)|` +
	`(user|author|committer)\.(email|name)|init\.defaultbranch|fetch\.prune|merge\.(conflictstyle|ff)|pull\.(ff|rebase)|push\.(autosetupremote|default)|` +
	`rebase\.(autosquash|autostash|updaterefs)|rerere\.enabled|options\.[a-z-]*|worktree\.userelativepaths)$`)

// gitDanger returns why a setting that git found is dangerous, in words of git-config(1). It
// shares no code with CheckGit.
func gitDanger(key, value string, repository struct{ config, tree string }) string {
	section, rest, _ := strings.Cut(key, ".")
	name := rest[strings.LastIndex(rest, ".")+1:]
	sub := strings.TrimSuffix(strings.TrimSuffix(rest, name), ".")
	where := func(dir, to string) bool { // leads out of the view
		if strings.HasPrefix(to, "/") {
			return to != "/workspace" && !strings.HasPrefix(path.Clean(to)+"/", "/workspace/")
		}
		at := path.Join("/above/view", dir, to)
		return at != "/above/view" && !strings.HasPrefix(at, "/above/view/")
	}
	location := func(url string) string {
		scheme, rest, found := strings.Cut(url, "://")
		authority, _, _ := strings.Cut(rest, "/")
		switch {
		case strings.HasPrefix(url, "-"):
			return "an option"
		case strings.HasPrefix(url, "~"):
			return "a path in a home directory"
		case regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9+.-]*::|^::`).MatchString(url):
			return "a remote helper"
		case found && scheme == "file":
			if !strings.HasPrefix(path.Clean(rest)+"/", "/workspace/") {
				return "a path outside"
			}
		case found && strings.HasPrefix(strings.TrimPrefix(authority[strings.LastIndex(authority, "@")+1:], "["), "-"):
			return "an option in place of a host"
		case found && regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9+.-]*$`).MatchString(scheme):
			if !slices.Contains([]string{"https", "http", "ssh", "git", "git+ssh", "ssh+git", "ftp", "ftps"}, scheme) {
				return "a scheme of another program"
			}
		case regexp.MustCompile(`^[^/]*:`).MatchString(url): // HOST:PATH
		case where(repository.tree, url):
			return "a path outside"
		}
		return ""
	}
	switch {
	case key == "commit.gpgsign":
		if value != "" && value != "false" && value != "no" && value != "off" && value != "0" {
			return "a program signs"
		}
		return ""
	case section == "remote" && name == "promisor", key == "extensions.partialclone": // its URL is judged
		return ""
	case section == "remote" && sub != "" && location(sub) != "":
		return "the name of a remote is its URL: " + location(sub)
	case section == "remote" && (name == "url" || name == "pushurl"), section == "submodule" && name == "url",
		section == "branch" && (name == "remote" || name == "pushremote"), key == "remote.pushdefault":
		return location(value)
	case section == "submodule" && name == "update":
		if strings.HasPrefix(value, "!") {
			return "a command"
		}
		return ""
	case key == "core.worktree":
		if where(path.Dir(repository.config), value) {
			return "a work tree outside"
		}
		return ""
	case key == "extensions.objectformat" && value != "sha1":
		return "git reads an index otherwise"
	case gitHarmless.MatchString(key):
		return ""
	}
	return "not a key that an agent sets"
}

// gitHost is a place with repositories that git of the host works in, and a canary.
type gitHost struct {
	git, top string
	env      []string
	watch    int // inotify(7) on the canary
}

func newGitHost(f testing.TB) *gitHost {
	g := &gitHost{git: need.Program(f, "git"), top: f.TempDir()}
	g.env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + g.top + "/home", "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "GIT_EDITOR=true", "GIT_PAGER=cat", "GIT_ASKPASS=false", "GIT_SSH_COMMAND=false",
		"GIT_AUTHOR_NAME=x", "GIT_AUTHOR_EMAIL=x@y", "GIT_COMMITTER_NAME=x", "GIT_COMMITTER_EMAIL=x@y", "no_proxy=*"}
	for _, dir := range []string{"home", "template/.git", "canary-outside/hooks"} {
		require.NoError(f, os.MkdirAll(filepath.Join(g.top, dir), 0o755))
	}
	for name, text := range map[string]string{
		"run": "#!/bin/sh\ntouch " + g.top + "/planted\nexit 1\n", "canary-outside/secret": "a secret\n", "canary-outside/hooks/pre-commit": "#!/bin/sh\ntouch " + g.top + "/planted\n",
		"template/f": "text\n", "template/.gitattributes": "f filter=f diff=d merge=m\n",
	} {
		require.NoError(f, os.WriteFile(filepath.Join(g.top, name), []byte(text), 0o755))
	}
	require.NoError(f, os.Remove(filepath.Join(g.top, "template/.git")))
	for _, args := range []string{"init -q -b main canary-outside", "-C canary-outside add .", "-C canary-outside commit -q -m secret --no-verify", "init -q -b main template", "-C template add .", "-C template commit -q -m x"} {
		cmd := g.command("", strings.Fields(args)...)
		out, err := cmd.CombinedOutput()
		require.NoError(f, err, "git %s: %s", args, out)
	}
	var err error
	g.watch, err = syscall.InotifyInit1(syscall.IN_NONBLOCK | syscall.IN_CLOEXEC)
	require.NoError(f, err)
	f.Cleanup(func() { syscall.Close(g.watch) })
	require.NoError(f, filepath.WalkDir(filepath.Join(g.top, "canary-outside"), func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_, err = syscall.InotifyAddWatch(g.watch, name, syscall.IN_OPEN|syscall.IN_CREATE|syscall.IN_MODIFY|syscall.IN_DELETE)
		}
		return err
	}))
	g.drain()
	return g
}

// drain reports whether something was done with the canary since the last call.
func (g *gitHost) drain() bool {
	b := make([]byte, 64<<10)
	n, _ := syscall.Read(g.watch, b)
	for m := n; m > 0; {
		m, _ = syscall.Read(g.watch, b)
	}
	return n > 0
}

func (g *gitHost) command(dir string, args ...string) *exec.Cmd {
	cmd := exec.Command(g.git, args...)
	cmd.Dir, cmd.Env = filepath.Join(g.top, dir), g.env
	return cmd
}

// gitHostCommands are what a user of the host does in a repository.
var gitHostCommands = []string{
	"status", "diff HEAD", "add -A", "restore .", "checkout -q -b other", "stash", "fetch --all", "log --stat -1", "worktree list", "submodule status", "submodule update", "commit -q --allow-empty -m x", "pull", "push", "gc -q", "st",
}

// harm runs git of the host in a repository that has the config, and returns the command
// that executed a program or touched the canary.
func (g *gitHost) harm(t *testing.T, config string, rel, tree string) string {
	require.NoError(t, os.RemoveAll(filepath.Join(g.top, "view")))
	require.NoError(t, os.MkdirAll(filepath.Join(g.top, "view", tree), 0o755))
	repository := filepath.Join(g.top, "view", path.Dir(rel))
	require.NoError(t, os.MkdirAll(filepath.Dir(repository), 0o755))
	from := []string{filepath.Join(g.top, "template/.git"), repository}
	out, err := exec.Command("cp", append([]string{"-a"}, from...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, os.WriteFile(filepath.Join(g.top, "view", rel), []byte(config), 0o644))
	for _, name := range []string{"f", ".gitattributes"} {
		text, err := os.ReadFile(filepath.Join(g.top, "template", name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(g.top, "view", tree, name), append(text, '\n'), 0o644))
	}
	if strings.Contains(rel, "/modules/") {
		require.NoError(t, os.WriteFile(filepath.Join(g.top, "view", tree, ".git"), []byte("gitdir: "+repository+"\n"), 0o644))
	}
	g.drain()
	for _, command := range gitHostCommands {
		said, _ := g.command(path.Join("view", tree), strings.Fields(command)...).CombinedOutput()
		t.Logf("git %s: %.300s", command, said)
		if _, err := os.Stat(filepath.Join(g.top, "planted")); err == nil {
			_ = os.Remove(filepath.Join(g.top, "planted"))
			return "git " + command + " executed a program"
		}
		if g.drain() {
			return "git " + command + " reached out"
		}
	}
	return ""
}

// TestGitHostHarm: git of the host does the harm that FuzzGitConfig looks for, if a config is
// not judged. CheckGit refuses each.
func TestGitHostHarm(t *testing.T) {
	g, keys := newGitHost(t), protectKeys(t)
	for _, text := range []string{
		"[core]\n\tfsmonitor = @RUN\n", "[alias]\n\tst = !@RUN\n", "[filter \"f\"]\n\tclean = @RUN\n\tsmudge = @RUN\n", "[core]\n\thooksPath = @OUT/hooks\n", "[include]\n\tpath = @OUT/.git/config\n",
		"[remote \"o\"]\n\turl = @OUT\n\tfetch = x\n", "[remote \"../../canary-outside\"]\n\tfetch = x\n", "[core]\n\tworktree = @OUT\n", "[core]\n\tattributesFile = @OUT/secret\n", "[diff \"d\"]\n\ttextconv = @RUN\n",
	} {
		text = strings.NewReplacer("@RUN", g.top+"/run", "@OUT", g.top+"/canary-outside").Replace(text)
		require.Error(t, CheckGit(GitConfig, "a/.git/config", keys, nil, []byte(text)), text)
		require.NotEmpty(t, g.harm(t, "[core]\n\trepositoryformatversion = 0\n"+text, "a/.git/config", "a"), text)
	}
}

// protectKeys are the keys that agents may set.
func protectKeys(t testing.TB) []string {
	text, err := os.ReadFile("protect/lists.go") // which imports this package
	require.NoError(t, err)
	_, list, _ := strings.Cut(string(text), "Config: []string{")
	list, _, _ = strings.Cut(list, "}")
	var keys []string
	for _, quoted := range regexp.MustCompile(`"([^"]+)"`).FindAllStringSubmatch(list, -1) {
		keys = append(keys, quoted[1])
	}
	require.Greater(t, len(keys), 80)
	return keys
}

// FuzzGitConfig: git finds in a config the settings that we find, with their values, if we
// read it at all. It finds none that is dangerous in one that we accept. For some of these, git
// of the host does its work, executes nothing and reaches nothing outside.
func FuzzGitConfig(f *testing.F) {
	g, keys := newGitHost(f), protectKeys(f)
	for i, text := range gitSeeds {
		f.Add(gitRecipe(text), byte(i))
		f.Add(gitRecipe("[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n"+text), byte(i+1))
	}
	f.Fuzz(func(t *testing.T, recipe []byte, which byte) {
		at := gitRepositories[int(which)%len(gitRepositories)]
		text := strings.NewReplacer("@RUN", g.top+"/run", "@OUT", g.top+"/canary-outside").Replace(gitText(recipe))
		ours, err := parseGitConfig([]byte(text))
		if err != nil {
			return
		}
		file := filepath.Join(t.TempDir(), "config")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		out, err := g.command("", "config", "--no-includes", "-z", "--list", "--file", file).Output()
		if err != nil {
			return // git reads nothing of it
		}
		accepted := CheckGit(GitConfig, at.config, keys, nil, []byte(text)) == nil
		i := 0
		for entry := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
			if len(out) == 0 {
				break
			}
			key, value, found := strings.Cut(entry, "\n")
			same := func(a, b string) bool { return strings.ReplaceAll(a, "\t", " ") == strings.ReplaceAll(b, "\t", " ") } // before git 2.45
			if i == len(ours) || ours[i].key() != key || ours[i].implicit == found || !same(ours[i].value, value) {
				t.Fatalf("%q: git has %q, we have %+v", text, entry, ours)
			}
			i++
			if why := gitDanger(key, value, at); accepted && why != "" {
				t.Fatalf("%q: %s has %q: %s", text, at.config, entry, why)
			}
		}
		if i != len(ours) {
			t.Fatalf("%q: git has %q, we have %+v", text, out, ours)
		}
		sum := fnv.New32()
		_, _ = sum.Write(recipe)
		if accepted && len(ours) > 0 && sum.Sum32()%gitSample == 0 && !bytes.Contains(out, []byte("://")) {
			if harm := g.harm(t, text, at.config, at.tree); harm != "" {
				t.Fatalf("%q: %s: %s", text, at.config, harm)
			}
		}
	})
}

// gitSample is the number of accepted configs to one for which git of the host works.
const gitSample = 16

// FuzzGitPaths: where clients can make HEAD, objects and refs, or a commondir, git takes the
// directory for a repository. There its files are what they are in every repository.
func FuzzGitPaths(f *testing.F) {
	for _, dir := range []string{"", ".git", "a", "a/.git", "x.git", ".git/modules/m", ".git/modules/a/b", ".git/worktrees/w", ".git/refs/heads/x", ".git/logs/refs/x", ".git/modules/logs/refs", ".GIT", "a/.g\u200cit/x",
		"git~1", ".git/hooks/x.sample", ".git/objects/x", ".git/refs/worktree", ".git/rebase-merge", "x.git/modules/refs/heads", ".git/lost-found/x", ".git::$INDEX_ALLOCATION/x", ".git /x", ".git./x", "x.GIT. ", ".git/refs", ".git/refs.", ".git/REFS", ".git/logs./refs/x",
	} {
		f.Add(dir)
	}
	p, err := Compile(PolicySpec{Git: &GitRules{Hooks: true, Config: []string{"core.bare"}}})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, dir string) {
		dir = clean(dir)
		in := func(name string) string { return strings.TrimPrefix(dir+"/"+name, "/") }
		may := func(op Op, name string) bool { return p.File(op, in(name)).Allow }
		makes := func(op Op, names ...string) bool {
			for _, name := range names {
				if !may(op, name) {
					return false
				}
			}
			return true
		}
		for at := dir; at != "." && at != ""; at = path.Dir(at) { // a directory that clients cannot make
			if !p.File(OpMkdir, at).Allow {
				return
			}
		}
		if !makes(OpCreate, "HEAD") || !makes(OpMkdir, "objects", "refs") && !makes(OpCreate, "commondir") {
			return
		}
		for name, kind := range map[string]gitFile{
			"config": gitJudged, "config.worktree": gitJudged, "index": gitJudged, "sharedindex.1": gitJudged, "MERGE_RR": gitJudged, "objects/info/alternates": gitJudged, "reftable/tables.list": gitJudged,
			"hooks": gitHooks, "hooks/pre-commit": gitHook, "remotes/x": gitRefused, "branches/x": gitRefused, "objects/pack/multi-pack-index": gitRefused, "config.lock": gitLock, "index.lock": gitLock,
		} {
			if got := classifyGit(in(name)).kind; got != kind {
				t.Fatalf("%q can be a repository, but %q is %d, not %d", dir, in(name), got, kind)
			}
		}
	})
}
