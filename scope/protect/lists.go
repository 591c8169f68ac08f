package protect

// lists are the lists of this package. Paths does not have those of tools here: see Builtin. The day beside a source is when a person last
// compared the paths with it.
var lists = []List{
	{
		Name: "build",
		Description: "files of package managers and build tools that choose which program runs before any of the " +
			"project's own, also for --version",
		Packages: true,
		Tools: []Tool{
			{
				Name:   "npm",
				Source: "https://docs.npmjs.com/cli/configuring-npm/npmrc", // checked 2026-11-23
				Paths:  []string{"**/.npmrc"},
			},
			{
				Name:   "Yarn",
				Source: "https://yarnpkg.com/configuration/yarnrc#yarnPath", // checked 2026-11-23
				Paths:  []string{"**/{.yarnrc.yml,.yarnrc}", "**/.yarn/{releases,plugins,sdks}"},
			},
			{
				Name:   "pnpm",
				Source: "https://pnpm.io/pnpmfile", // checked 2026-11-23
				Paths:  []string{"**/.pnpmfile.{cjs,mjs}", "**/pnpmfile.{js,cjs,mjs}"},
			},
			{
				Name:   "Bun",
				Source: "https://bun.sh/docs/runtime/bunfig",
				Paths:  []string{"**/{,.}bunfig.toml"},
			},
			{
				Name:   "Bundler",
				Source: "https://bundler.io/man/bundle-config.1.html",
				Paths:  []string{"**/.bundle"},
			},
			{
				Name:   "Cargo",
				Source: "https://doc.rust-lang.org/cargo/reference/config.html",
				Paths:  []string{"**/.cargo/{config,config.toml}"},
			},
			{
				Name:   "Maven",
				Source: "https://maven.apache.org/configure.html",
				Paths:  []string{"**/.mvn", "**/{mvnw,mvnw.cmd}"},
			},
			{
				Name:   "Gradle",
				Source: "https://docs.gradle.org/current/userguide/gradle_wrapper.html",
				Paths: []string{
					"**/gradle/wrapper", "**/{gradlew,gradlew.bat}",
					"**/.gradle/{config.properties,gradle.properties,init.d,init.gradle,init.gradle.kts}",
				},
			},
			{
				Name:   "sbt and Mill",
				Source: "https://www.scala-sbt.org/1.x/docs/sbt-launcher.html",
				Paths:  []string{"**/{.sbtopts,.jvmopts,.sbtrc,.mill-jvm-opts,.mill-opts,.mill-version}"},
			},
			{
				Name:   "Bazel",
				Source: "https://bazel.build/run/bazelrc",
				Paths: []string{
					"**/{.bazelrc,.bazelrc.user,.bazelrc.local,user.bazelrc,.bazeliskrc,.bazelversion}", "**/*.bazelrc",
					"**/tools/{bazel,bazel.bat,bazel.ps1}",
				},
			},
			{
				Name:   "Buck",
				Source: "https://buck2.build/docs/concepts/buckconfig/",
				Paths:  []string{"**/{.buckconfig,.buckconfig.local,.buckconfig.d,.buckjavaargs}"},
			},
			{
				Name:   "Please",
				Source: "https://please.build/config.html",
				Paths:  []string{"**/.plzconfig", "**/.plzconfig.*", "**/pleasew"},
			},
			{
				Name:   "Pants",
				Source: "https://www.pantsbuild.org/stable/docs/using-pants/key-concepts/options",
				Paths:  []string{"**/{.pants.bootstrap,.pants.rc,.pantsrc}"},
			},
			{
				Name:   "daemon of Gradle",
				Source: "https://docs.gradle.org/current/userguide/gradle_daemon.html",
				Paths:  []string{"**/gradle/gradle-daemon-jvm.properties"},
			},
			{
				Name:   "plugins of Pants",
				Source: "https://www.pantsbuild.org/stable/reference/global-options",
				Paths:  []string{"**/pants.toml"},
			},
			{
				Name:   "Chef",
				Source: "https://docs.chef.io/workstation/config_rb/",
				Paths:  []string{"**/.chef/{config,knife}.rb"},
			},
			{
				Name:   "Ansible",
				Source: "https://docs.ansible.com/ansible/latest/reference_appendices/config.html",
				Paths:  []string{"**/{,.}ansible.cfg"},
			},
			{
				Name:   "Conan",
				Source: "https://docs.conan.io/2/reference/config_files/conanrc.html",
				Paths:  []string{"**/.conanrc"},
			},
			{
				Name:   "LuaRocks",
				Source: "https://github.com/luarocks/luarocks/wiki/Config-file-format",
				Paths:  []string{"**/.luarocks/config-*.lua"},
			},
			{
				Name:   "Aspect CLI",
				Source: "https://docs.aspect.build/cli/",
				Paths:  []string{"**/.aspect/cli"},
			},
			{
				Name:   "act",
				Source: "https://nektosact.com/usage/index.html#configuration-file",
				Paths:  []string{"**/.actrc"},
			},
			{
				Name:   "TFLint",
				Source: "https://github.com/terraform-linters/tflint/blob/master/docs/user-guide/plugins.md",
				Paths:  []string{"**/.tflint.hcl", "**/.tflint.d"},
			},
			{
				Name:   "YARD",
				Source: "https://rubydoc.info/gems/yard/file/docs/GettingStarted.md",
				Paths:  []string{"**/.yardopts"},
			},
			{
				Name:   "Nx",
				Source: "https://nx.dev/recipes/installation/install-non-javascript",
				Paths:  []string{"**/.nx/nxw.js"},
			},
		},
	},
	{
		Name:        "editor",
		Description: "settings, tasks and scripts of a directory that editors, their debuggers and language servers execute",
		Packages:    true,
		Tools: []Tool{
			{
				Name:   "Visual Studio Code",
				Source: "https://code.visualstudio.com/docs/editor/workspaces/workspace-trust",
				Paths:  []string{"**/.vscode", "**/*.code-workspace"},
			},
			{
				Name:   "development containers",
				Source: "https://containers.dev/implementors/spec/",
				Paths:  []string{"**/.devcontainer", "**/.devcontainer.json"},
			},
			{
				Name:   "Theia",
				Source: "https://theia-ide.org/docs/preferences/",
				Paths:  []string{"**/.theia"},
			},
			{
				Name:   "JetBrains",
				Source: "https://www.jetbrains.com/help/idea/creating-and-managing-projects.html",
				Paths:  []string{"**/{.idea,.fleet,.run}", "**/*.{ipr,iws}"},
			},
			{
				Name:   "Visual Studio",
				Source: "https://learn.microsoft.com/en-us/visualstudio/ide/customize-build-and-debug-tasks-in-visual-studio",
				Paths:  []string{"**/.vs"},
			},
			{
				Name:   "Zed",
				Source: "https://zed.dev/docs/configuring-zed",
				Paths:  []string{"**/.zed"},
			},
			{
				Name:   "Helix",
				Source: "https://docs.helix-editor.com/configuration.html",
				Paths:  []string{"**/.helix"},
			},
			{
				Name:   "Lapce",
				Source: "https://docs.lapce.dev/get-started/configurations",
				Paths:  []string{"**/.lapce"},
			},
			{
				Name:   "Lite XL",
				Source: "https://lite-xl.com/user-guide/configuration/",
				Paths:  []string{"**/{.lite_project,.lite_project.lua}"},
			},
			{
				Name:   "Nova",
				Source: "https://help.nova.app/docs/projects/tasks-and-build/",
				Paths:  []string{"**/.nova"},
			},
			{
				Name:   "Sublime Text",
				Source: "https://www.sublimetext.com/docs/projects.html",
				Paths:  []string{"**/*.sublime-{project,workspace}"},
			},
			{
				Name:   "Vim and Neovim",
				Source: "https://vimhelp.org/starting.txt.html#.exrc",
				Paths:  []string{"**/{.vim,.vimrc,.gvimrc,.exrc,_vimrc,_gvimrc,_exrc}", "**/{.nvim.lua,.nvimrc,.nvim}"},
			},
			{
				Name:   "local configuration of Vim and Neovim",
				Source: "https://github.com/embear/vim-localvimrc",
				Paths: []string{
					"**/{.lvimrc,_lvimrc,.local.vimrc,_vimrc_local.vim,.vimrc.local,.lazy.lua,.neoconf.json,.nlsp-settings}",
				},
			},
			{
				Name:   "YouCompleteMe",
				Source: "https://github.com/ycm-core/YouCompleteMe#option-2-provide-the-flags-manually",
				Paths:  []string{"**/.ycm_extra_conf.py"},
			},
			{
				Name:   "vimspector",
				Source: "https://puremourning.github.io/vimspector/configuration.html",
				Paths:  []string{"**/{.vimspector.json,.gadgets.json}"},
			},
			{
				Name:   "vim-projectionist",
				Source: "https://github.com/tpope/vim-projectionist",
				Paths:  []string{"**/.projections.json"},
			},
			{
				Name:   "Emacs",
				Source: "https://www.gnu.org/software/emacs/manual/html_node/emacs/Directory-Variables.html",
				Paths:  []string{"**/{.dir-locals.el,.dir-locals-2.el,.emacs,.emacs.d,.emacs.desktop,.spacemacs,.doom.d}"},
			},
			{
				Name:   "Kate",
				Source: "https://docs.kde.org/stable5/en/kate/kate/kate-application-plugin-projects.html",
				Paths:  []string{"**/.kateproject", "**/.kateproject.{build,notes}", "**/.kateproject.d"},
			},
			{
				Name:   "KDevelop",
				Source: "https://docs.kde.org/stable5/en/kdevelop/kdevelop/project-management.html",
				Paths:  []string{"**/.kdev4", "**/*.kdev4"},
			},
			{
				Name:   "Geany",
				Source: "https://www.geany.org/manual/current/#project-management",
				Paths:  []string{"**/*.geany"},
			},
			{
				Name:   "Eclipse",
				Source: "https://help.eclipse.org/latest/topic/org.eclipse.platform.doc.user/concepts/concepts-exttools.htm",
				Paths:  []string{"**/.externalToolBuilders"},
			},
			{
				Name:   "GDB",
				Source: "https://sourceware.org/gdb/current/onlinedocs/gdb.html/Init-File-in-the-Current-Directory.html",
				Paths:  []string{"**/{.gdbinit,.gdbearlyinit}"},
			},
			{
				Name:   "LLDB",
				Source: "https://lldb.llvm.org/man/lldb.html",
				Paths:  []string{"**/{.lldbinit,.lldbinit-lldb,.lldbinit-Xcode}"},
			},
			{
				Name:   "radare2 and Rizin",
				Source: "https://book.rada.re/configuration/initial_scripts.html",
				Paths:  []string{"**/{.radare2rc,.rizinrc}"},
			},
			{
				Name:   "clojure-lsp",
				Source: "https://clojure-lsp.io/settings/",
				Paths:  []string{"**/.lsp/config.edn"},
			},
			{
				Name:   "rust-analyzer",
				Source: "https://rust-analyzer.github.io/book/configuration.html",
				Paths:  []string{"**/{,.}rust-analyzer.toml"},
			},
			{
				Name:   "phpactor",
				Source: "https://phpactor.readthedocs.io/en/master/usage/configuration.html",
				Paths:  []string{"**/.phpactor.{json,yml,yaml}"},
			},
			{
				Name:   "lua-language-server",
				Source: "https://luals.github.io/wiki/plugins/",
				Paths:  []string{"**/.luarc.{json,jsonc}"},
			},
			{
				Name:   "lintr",
				Source: "https://lintr.r-lib.org/articles/lintr.html",
				Paths:  []string{"**/.lintr", "**/.lintr.R"},
			},
			{
				Name:   "GNU Global",
				Source: "https://www.gnu.org/software/global/globaldoc_toc.html",
				Paths:  []string{"**/{gtags.conf,.globalrc}"},
			},
			{
				Name:   "Ctags",
				Source: "https://docs.ctags.io/en/latest/option-file.html",
				Paths:  []string{"**/{.ctags,ctags.cnf,.ctags.d,.gutctags}"},
			},
			{
				Name:   "rope and Jedi",
				Source: "https://rope.readthedocs.io/en/latest/configuration.html",
				Paths:  []string{"**/.ropeproject/config.py", "**/.jedi"},
			},
			{
				Name:   "Eclipse JDT",
				Source: "https://help.eclipse.org/latest/topic/org.eclipse.jdt.doc.user/tasks/task-config_annot_proc.htm",
				Paths:  []string{"**/.factorypath"},
			},
			{
				Name:   "rust-analyzer of another build system",
				Source: "https://rust-analyzer.github.io/book/non_cargo_based_projects.html",
				Paths:  []string{"**/{,.}rust-project.json"},
			},
			{
				Name:   "Clojure in an editor",
				Source: "https://nrepl.org/nrepl/usage/server.html",
				Paths:  []string{"**/.nrepl.edn", "**/.joyride"},
			},
			{
				Name:   "OmniSharp",
				Source: "https://github.com/OmniSharp/omnisharp-roslyn/wiki/Configuration-Options",
				Paths:  []string{"**/omnisharp.json"},
			},
			{
				Name:   "Tern",
				Source: "https://ternjs.net/doc/manual.html#configuration",
				Paths:  []string{"**/.tern-project"},
			},
			{
				Name:   "Neovim in a home directory",
				Source: "https://neovim.io/doc/user/starting.html",
				Paths:  []string{"**/.config/{nvim,helix,kak}"},
			},
		},
	},
	{
		Name:        "git-config",
		Description: "the config of git repositories. These keys may be set; every other one may name a program, or a file that does",
		Tools: []Tool{
			{
				Name:   "git",
				Source: "https://git-scm.com/docs/git-config",
				Paths:  []string{"**/.gitconfig", "**/.config/git"},
			},
		},
		Config: []string{
			"core.abbrev", "core.autocrlf", "core.bare", "core.bigfilethreshold", "core.compression", "core.eol",
			"core.filemode", "core.ignorecase", "core.logallrefupdates", "core.longpaths", "core.precomposeunicode",
			"core.quotepath", "core.repositoryformatversion", "core.safecrlf", "core.sharedrepository", "core.sparsecheckout",
			"core.sparsecheckoutcone", "core.symlinks", "core.untrackedcache", "core.worktree", "extensions.objectformat",
			"extensions.partialclone", "extensions.refstorage", "extensions.relativeworktrees", "extensions.worktreeconfig",
			"index.sparse", "index.version", "remote.*.fetch", "remote.*.gh-resolved", "remote.*.mirror",
			"remote.*.partialclonefilter", "remote.*.promisor", "remote.*.prune", "remote.*.pushurl", "remote.*.tagopt",
			"remote.*.url", "branch.*.description", "branch.*.gh-merge-base", "branch.*.merge", "branch.*.pushremote",
			"branch.*.rebase", "branch.*.remote", "branch.autosetupmerge", "branch.autosetuprebase", "submodule.*.active",
			"submodule.*.branch", "submodule.*.ignore", "submodule.*.shallow", "submodule.*.update", "submodule.*.url",
			"submodule.active", "submodule.recurse", "user.email", "user.name", "author.email", "author.name", "committer.email",
			"committer.name", "advice.*", "color.ui", "commit.gpgsign", "diff.algorithm", "gc.auto", "http.postbuffer",
			"http.version", "init.defaultbranch", "lfs.repositoryformatversion", "maintenance.auto", "fetch.prune",
			"merge.conflictstyle", "merge.ff", "pull.ff", "pull.rebase", "push.autosetupremote", "push.default",
			"push.followtags", "rebase.autosquash", "rebase.autostash", "rebase.updaterefs", "remote.pushdefault",
			"rerere.enabled", "worktree.userelativepaths",
			// of .git/sequencer/opts
			"options.allow-empty", "options.allow-empty-message",
			"options.allow-ff", "options.allow-rerere-auto", "options.default-msg-cleanup", "options.drop-redundant-commits",
			"options.edit", "options.keep-redundant-commits", "options.mainline", "options.no-commit", "options.record-origin",
			"options.signoff", "options.strategy", "options.strategy-option",
		},
	},
	{
		Name: "git-hooks",
		Description: "hooks of git repositories, the files from which managers of hooks make them, and the settings of " +
			"other version control",
		Packages: true,
		Hooks:    true,
		Tools: []Tool{
			{
				Name:   "hooks by core.hooksPath",
				Source: "https://git-scm.com/docs/githooks",
				Paths:  []string{"**/{.githooks,.git-hooks,.hooks,githooks,git-hooks}"},
			},
			{
				Name:   "lefthook",
				Source: "https://lefthook.dev/configuration", // checked 2026-11-23
				Paths:  []string{"**/{,.}lefthook{,-local}.{yml,yaml,toml,json,jsonc}", "**/{.lefthook,.lefthook-local}"},
			},
			{
				Name:   "pre-commit",
				Source: "https://pre-commit.com/#plugins", // checked 2026-11-23
				Paths:  []string{"**/.pre-commit-{config,hooks}.{yaml,yml}"},
			},
			{
				Name:   "prek",
				Source: "https://prek.j178.dev/configuration/", // checked 2026-11-23
				Paths:  []string{"**/{prek,.prek}.toml"},
			},
			{
				Name:   "hk",
				Source: "https://hk.jdx.dev/configuration.html",                              // checked 2026-11-23
				Paths:  []string{"**/{,.}hk{,rc}{,.local}.{pkl,toml}", "hk.{yaml,yml,json}"}, // Hong Kong has the latter elsewhere
			},
			{
				Name:   "husky",
				Source: "https://typicode.github.io/husky/how-to.html", // checked 2026-11-23
				Paths:  []string{"**/.husky", "**/.huskyrc", "**/.huskyrc.{json,yaml,yml,js,cjs}", "**/husky.config.{js,cjs}"},
			},
			{
				Name:   "lint-staged",
				Source: "https://github.com/lint-staged/lint-staged#configuration", // checked 2026-11-23
				Paths:  []string{"**/.lintstagedrc", "**/{.lintstagedrc,lint-staged.config}.{json,yaml,yml,mjs,mts,js,ts,cjs,cts}"},
			},
			{
				Name:   "nano-staged",
				Source: "https://github.com/usmanyunusov/nano-staged#configuration",
				Paths:  []string{"**/.nanostagedrc", "**/{.,}nano-staged.{json,js,cjs,mjs}"},
			},
			{
				Name:   "simple-git-hooks",
				Source: "https://github.com/toplenboren/simple-git-hooks#additional-configuration-options", // checked 2026-11-23
				Paths:  []string{"**/{.,}simple-git-hooks.{js,cjs,mjs,json}"},
			},
			{
				Name:   "commitlint",
				Source: "https://commitlint.js.org/reference/configuration.html",
				Paths:  []string{"**/.commitlintrc", "**/{.commitlintrc,commitlint.config}.{json,yaml,yml,js,cjs,mjs,ts,cts,mts}"},
			},
			{
				Name:   "commitizen",
				Source: "https://commitizen-tools.github.io/commitizen/config/configuration_file/",
				Paths:  []string{"**/.czrc", "**/{.,}cz.{toml,json,yaml,yml}", "**/.cz-config.{js,cjs}"},
			},
			{
				Name:   "overcommit",
				Source: "https://github.com/sds/overcommit#configuration",
				Paths:  []string{"**/{.,.local-}overcommit.yml"},
			},
			{
				Name:   "captainhook",
				Source: "https://docs.captainhook.info/configure.html",
				Paths:  []string{"**/captainhook{,.config}.json"},
			},
			{
				Name:   "GrumPHP",
				Source: "https://github.com/phpro/grumphp/blob/v2.x/doc/cli.md",
				Paths:  []string{"**/{.,}grumphp.{yml,yaml,yml.dist,yaml.dist,dist.yml,dist.yaml}"},
			},
			{
				Name:   "rusty-hook",
				Source: "https://github.com/swellaby/rusty-hook#configure",
				Paths:  []string{"**/{.,}rusty-hook.toml"},
			},
			{
				Name:   "cargo-husky",
				Source: "https://github.com/rhysd/cargo-husky#ignore-installing-hooks",
				Paths:  []string{"**/.cargo-husky"},
			},
			{
				Name:   "monk",
				Source: "https://github.com/daynin/monk#usage",
				Paths:  []string{"**/{.,}monk.{yaml,yml}"},
			},
			{
				Name:   "gitlint",
				Source: "https://jorisroovers.com/gitlint/latest/configuration/",
				Paths:  []string{"**/.gitlint"},
			},
			{
				Name:       "myrepos",
				Source:     "https://manpages.debian.org/stable/myrepos/mr.1.en.html",
				Everywhere: true,
				Paths:      []string{"**/.mrconfig"},
			},
			{
				Name:       "Mercurial",
				Source:     "https://www.mercurial-scm.org/help/topics/config",
				Everywhere: true,
				Paths:      []string{"**/.hg", "**/.hgrc"},
			},
			{
				Name:       "Jujutsu",
				Source:     "https://docs.jj-vcs.dev/latest/config/",
				Everywhere: true,
				Paths:      []string{"**/.jj"},
			},
			{
				Name:       "Sapling",
				Source:     "https://sapling-scm.com/docs/introduction/",
				Everywhere: true,
				Paths:      []string{"**/.sl"},
			},
			{
				Name:       "Breezy and Bazaar",
				Source:     "https://www.breezy-vcs.org/doc/en/user-reference/configuration-help.html",
				Everywhere: true,
				Paths:      []string{"**/.bzr"},
			},
			{
				Name:       "Subversion",
				Source:     "https://svnbook.red-bean.com/en/1.8/svn.tour.cycle.html",
				Everywhere: true,
				Paths:      []string{"**/.svn"},
			},
			{
				Name:       "Darcs",
				Source:     "http://darcs.net/Using/Configuration",
				Everywhere: true,
				Paths:      []string{"**/_darcs"},
			},
			{
				Name:       "Fossil",
				Source:     "https://fossil-scm.org/home/doc/trunk/www/settings.wiki",
				Everywhere: true,
				Paths:      []string{"**/{.fslckout,_FOSSIL_,.fossil-settings}"},
			},
			{
				Name:       "Pijul",
				Source:     "https://pijul.org/manual/configuration.html",
				Everywhere: true,
				Paths:      []string{"**/.pijul"},
			},
			{
				Name:       "repo",
				Source:     "https://gerrit.googlesource.com/git-repo/+/HEAD/docs/internal-fs-layout.md",
				Everywhere: true,
				Paths:      []string{"**/.repo"},
			},
			{
				Name:       "Perforce",
				Source:     "https://help.perforce.com/helix-core/server-apps/cmdref/current/Content/CmdRef/P4CONFIG.html",
				Everywhere: true,
				Paths:      []string{"**/{.p4config,p4config.txt,.p4enviro}"},
			},
			{
				Name:   "hooks of git by name",
				Source: "https://git-scm.com/docs/githooks",
				Paths: []string{
					"**/hooks/{applypatch-msg,pre-applypatch,post-applypatch,pre-commit,pre-merge-commit,prepare-commit-msg," +
						"commit-msg,post-commit,pre-rebase,post-checkout,post-merge,pre-push,pre-receive,update,post-receive," +
						"post-update,reference-transaction,push-to-checkout,pre-auto-gc,post-rewrite,sendemail-validate," +
						"fsmonitor-watchman}",
				},
			},
			{
				Name:   "moon",
				Source: "https://moonrepo.dev/docs/guides/vcs-hooks",
				Paths:  []string{"**/.moon/hooks", "**/.moon/*.{yml,yaml,pkl}"},
			},
			{
				Name:   "Trunk",
				Source: "https://docs.trunk.io/references/cli/configuration/actions",
				Paths:  []string{"**/.trunk/{trunk.yaml,actions,plugins,configs}"},
			},
			{
				Name:   "mookme",
				Source: "https://mookme.org/",
				Paths:  []string{"**/.mookme.json"},
			},
			{
				Name:   "cocogitto",
				Source: "https://docs.cocogitto.io/guide/git_hooks.html",
				Paths:  []string{"**/cog.toml"},
			},
			{
				Name:   "git-review",
				Source: "https://docs.opendev.org/opendev/git-review/latest/",
				Paths:  []string{"**/.gitreview"},
			},
			{
				Name:   "Git LFS",
				Source: "https://github.com/git-lfs/git-lfs/blob/main/docs/man/git-lfs-config.adoc",
				Paths:  []string{"**/.lfsconfig"},
			},
			{
				Name:   "lazygit",
				Source: "https://github.com/jesseduffield/lazygit/blob/master/docs/Config.md",
				Paths:  []string{"**/.lazygit.yml", "**/{*,}.git/lazygit.yml"},
			},
			{
				Name:   "other programs in a repository",
				Source: "https://sapling-scm.com/docs/git/git_support_modes/",
				Paths:  []string{"**/{*,}.git/{sl,branchless,gitweb}"},
			},
			{
				Name:   "RBTools",
				Source: "https://www.reviewboard.org/docs/rbtools/latest/rbt/configuration/",
				Paths:  []string{"**/.reviewboardrc"},
			},
			{
				Name:   "Arcanist",
				Source: "https://secure.phabricator.com/book/phabricator/article/arcanist_new_project/",
				Paths:  []string{"**/{.arcconfig,.arclint,.arcunit}"},
			},
			{
				Name:       "depot_tools and West",
				Source:     "https://www.chromium.org/developers/how-tos/depottools/",
				Everywhere: true,
				Paths:      []string{"**/.gclient", "**/.west/config"},
			},
		},
	},
	{
		Name:        "mcp",
		Description: "MCP servers, hooks, plugins and commands of a directory that agent programs execute",
		Tools: []Tool{
			{
				Name:   "MCP",
				Source: "https://modelcontextprotocol.io/docs/develop/connect-local-servers",
				Paths:  []string{"**/{,.}mcp.{json,jsonc}", "**/{,.}mcp.local.json", "**/{,.}mcp_config.json", "**/.mcp"},
			},
			{
				Name:   "skills and hooks of several agents",
				Source: "https://agentskills.io/",
				Paths:  []string{"**/{.agents,.agent}"},
			},
			{
				Name:   "Claude Code",
				Source: "https://code.claude.com/docs/en/settings",
				Paths:  []string{"**/{.claude,.claude.json,.claude-plugin}"},
			},
			{
				Name:   "Codex",
				Source: "https://learn.chatgpt.com/docs/config-file/config-basic", // checked 2026-11-23
				Paths:  []string{"**/.codex", "**/.codex-plugin"},
			},
			{
				Name:   "Gemini CLI",
				Source: "https://geminicli.com/docs/reference/configuration/",
				Paths:  []string{"**/.gemini"},
			},
			{
				Name:   "Antigravity",
				Source: "https://docs.rs/crate/agent-config/0.3.0/source/docs/agents/antigravity.md", // checked 2026-11-23
				Paths:  []string{"**/.antigravity"},
			},
			{
				Name:   "Qwen Code",
				Source: "https://qwenlm.github.io/qwen-code-docs/en/users/configuration/settings/",
				Paths:  []string{"**/.qwen"},
			},
			{
				Name:   "iFlow CLI",
				Source: "https://platform.iflow.cn/en/cli/configuration/settings",
				Paths:  []string{"**/.iflow"},
			},
			{
				Name:   "opencode",
				Source: "https://opencode.ai/docs/config/",
				Paths:  []string{"**/.opencode", "**/{,.}opencode.{json,jsonc}", "**/.config/opencode"},
			},
			{
				Name:   "Kilo Code",
				Source: "https://kilo.ai/docs/automate/mcp/using-in-kilo-code", // checked 2026-11-23
				Paths:  []string{"**/{.kilocode,.kilo,.kilocodemodes}", "**/kilo.{json,jsonc}"},
			},
			{
				Name:   "Crush",
				Source: "https://github.com/charmbracelet/crush#configuration",
				Paths:  []string{"**/{,.}crush.json", "**/.crush"},
			},
			{
				Name:   "Amp",
				Source: "https://ampcode.com/manual#configuration", // checked 2026-11-23
				Paths:  []string{"**/.amp"},
			},
			{
				Name:   "Cursor",
				Source: "https://cursor.com/docs/context/mcp",
				Paths:  []string{"**/{.cursor,.cursor-plugin}"},
			},
			{
				Name:   "Windsurf",
				Source: "https://docs.windsurf.com/windsurf/cascade/hooks",
				Paths:  []string{"**/{.windsurf,.codeium,.devin}"},
			},
			{
				Name:   "Trae",
				Source: "https://docs.trae.ai/ide/model-context-protocol",
				Paths:  []string{"**/.trae"},
			},
			{
				Name:   "Qoder",
				Source: "https://docs.qoder.com/cli/hooks",
				Paths:  []string{"**/.qoder"},
			},
			{
				Name:   "CodeBuddy",
				Source: "https://www.codebuddy.ai/docs/cli/settings",
				Paths:  []string{"**/.codebuddy"},
			},
			{
				Name:   "GitHub Copilot",
				Source: "https://docs.github.com/en/copilot/reference/hooks-reference", // checked 2026-11-23
				Paths:  []string{"**/.copilot", "**/.github/{hooks,mcp.json,copilot,agents,plugin,extensions}"},
			},
			{
				Name:   "Kiro",
				Source: "https://kiro.dev/docs/cli/hooks/",
				Paths:  []string{"**/.kiro"},
			},
			{
				Name:   "Amazon Q",
				Source: "https://docs.aws.amazon.com/amazonq/latest/qdeveloper-ug/command-line-mcp-configuration.html",
				Paths:  []string{"**/.amazonq"},
			},
			{
				Name:   "Cline",
				Source: "https://docs.cline.bot/customization/hooks", // checked 2026-11-23
				Paths:  []string{"**/{.clinerules,.cline}"},
			},
			{
				Name:   "Roo Code",
				Source: "https://docs.roocode.com/features/mcp/using-mcp-in-roo",
				Paths:  []string{"**/{.roo,.roomodes}"},
			},
			{
				Name:   "Continue",
				Source: "https://docs.continue.dev/reference",
				Paths:  []string{"**/{.continue,.continuerc.json}"},
			},
			{
				Name:   "aider",
				Source: "https://aider.chat/docs/config/aider_conf.html",
				Paths:  []string{"**/.aider.conf.{yml,yaml}", "**/.aider.model.{settings.yml,metadata.json}"},
			},
			{
				Name:   "goose",
				Source: "https://block.github.io/goose/docs/guides/config-files",
				Paths:  []string{"**/.goose", "**/.config/goose"},
			},
			{
				Name:   "Droid",
				Source: "https://docs.factory.ai/reference/hooks-reference", // checked 2026-11-23
				Paths:  []string{"**/{.factory,.factory-plugin}"},
			},
			{
				Name:   "Auggie",
				Source: "https://docs.augmentcode.com/cli/hooks",
				Paths:  []string{"**/.augment"},
			},
			{
				Name:   "Junie",
				Source: "https://www.jetbrains.com/help/junie/model-context-protocol-mcp.html", // checked 2026-11-23
				Paths:  []string{"**/.junie"},
			},
			{
				Name:   "OpenHands",
				Source: "https://docs.all-hands.dev/usage/prompting/repository",
				Paths:  []string{"**/.openhands"},
			},
			{
				Name:   "gptme",
				Source: "https://gptme.org/docs/config.html",
				Paths:  []string{"**/gptme{,.local}.toml"},
			},
			{
				Name:   "Rovo Dev",
				Source: "https://support.atlassian.com/rovo/docs/manage-rovo-dev-cli-settings/",
				Paths:  []string{"**/.rovodev"},
			},
			{
				Name:   "Kimi, Mistral Vibe, Grok, Pi and Letta",
				Source: "https://github.com/mistralai/mistral-vibe#configuration",
				Paths:  []string{"**/{.kimi,.vibe,.grok,.pi,.letta}"},
			},
			{
				Name:   "Warp",
				Source: "https://docs.warp.dev/knowledge-and-collaboration/mcp",
				Paths:  []string{"**/.warp"},
			},
			{
				Name:   "Docker agent",
				Source: "https://github.com/docker/docker-agent",
				Paths:  []string{"**/{,.}cagent.{yaml,yml}"},
			},
			{
				Name:   "Serena",
				Source: "https://oraios.github.io/serena/",
				Paths:  []string{"**/.serena"},
			},
			{
				Name:   "Tabnine and Cody",
				Source: "https://docs.tabnine.com/main/getting-started/tabnine-agent/mcp-intro-and-setup",
				Paths:  []string{"**/{.tabnine,.cody}"},
			},
			{
				Name:   "ECA",
				Source: "https://eca.dev/configuration/",
				Paths:  []string{"**/.eca"},
			},
			{
				Name:   "Mux",
				Source: "https://mux.coder.com/hooks/init",
				Paths:  []string{"**/.mux"},
			},
			{
				Name:   "beads",
				Source: "https://github.com/steveyegge/beads",
				Paths:  []string{"**/.beads/hooks"},
			},
			{
				Name:   "ForgeCode",
				Source: "https://forgecode.dev/docs/forge-yaml-config/",
				Paths:  []string{"**/forge.yaml", "**/.forge"},
			},
			{
				Name:   "Neovate",
				Source: "https://neovateai.dev/en/docs/configuration",
				Paths:  []string{"**/.neovate"},
			},
			{
				Name:   "spec-kit",
				Source: "https://github.com/github/spec-kit",
				Paths:  []string{"**/.specify/scripts"},
			},
			{
				Name:   "Conductor and Superset",
				Source: "https://docs.conductor.build/core/scripts",
				Paths:  []string{"**/conductor.json", "**/.superset"},
			},
			{
				Name:   "fast-agent and mcp-agent",
				Source: "https://fast-agent.ai/ref/config_file/",
				Paths:  []string{"**/{fastagent,mcp_agent}.{config,secrets}.{yaml,yml}"},
			},
			{
				Name:   "Refact.ai",
				Source: "https://docs.refact.ai/features/autonomous-agent/integrations/",
				Paths:  []string{"**/.refact"},
			},
			{
				Name:   "Codebuff",
				Source: "https://www.codebuff.com/docs/tips/project-configuration",
				Paths:  []string{"**/codebuff.json"},
			},
			{
				Name:   "Zencoder and OpenClaw",
				Source: "https://docs.zencoder.ai/",
				Paths:  []string{"**/{.zencoder,.openclaw}"},
			},
		},
	},
	{
		Name:        "scopefs",
		Description: "definitions and settings of agents, by which scopefs decides",
		Tools: []Tool{
			{
				Name:   "scopefs",
				Source: "docs/agents.md", // checked 2026-11-23
				Paths:  []string{"**/{agents.d,extensions.d,activities.d,presets.d,programs.d,protect.d,scopefs.yaml,.scopefs.yaml}"},
			},
		},
	},
	{
		Name: "shell",
		Description: "what shells, their extensions, interpreters and terminals execute on entering a directory, on " +
			"starting in it, or in a home directory",
		Packages: true,
		Tools: []Tool{
			{
				Name:   "sh, bash and ksh",
				Source: "https://www.gnu.org/software/bash/manual/html_node/Bash-Startup-Files.html",
				Paths: []string{
					"**/{.profile,.bashrc,.bash_profile,.bash_login,.bash_logout,.bash_aliases,.bash_completion,.inputrc,.kshrc," +
						".mkshrc,.shrc,.shinit,.localrc}",
				},
			},
			{
				Name:   "zsh",
				Source: "https://zsh.sourceforge.io/Doc/Release/Files.html",
				Paths: []string{
					"**/{.zshrc,.zshenv,.zprofile,.zlogin,.zlogout,.zlogin.zwc,.zshrc.zwc,.zshenv.zwc,.zprofile.zwc,.zlogout.zwc," +
						".p10k.zsh,.oh-my-zsh}",
				},
			},
			{
				Name:   "csh and tcsh",
				Source: "https://manpages.debian.org/stable/tcsh/tcsh.1.en.html",
				Paths:  []string{"**/{.cshrc,.tcshrc,.login,.logout,.cshdirs}"},
			},
			{
				Name:   "fish",
				Source: "https://fishshell.com/docs/current/language.html#configuration-files",
				Paths:  []string{"**/.config/fish"},
			},
			{
				Name:   "Nushell, Elvish and Xonsh",
				Source: "https://www.nushell.sh/book/configuration.html",
				Paths:  []string{"**/.config/{nushell,elvish,xonsh}", "**/.elvish", "**/.xonshrc"},
			},
			{
				Name:   "PowerShell",
				Source: "https://learn.microsoft.com/en-us/powershell/module/microsoft.powershell.core/about/about_profiles",
				Paths:  []string{"**/.config/powershell"},
			},
			{
				Name:   "direnv",
				Source: "https://direnv.net/man/direnv.1.html", // checked 2026-11-23
				Paths:  []string{"**/{.envrc,.envrc.local,.envrc.private,.direnv,.direnvrc}"},
			},
			{
				Name:   "mise",
				Source: "https://mise.jdx.dev/configuration.html", // checked 2026-11-23
				Paths: []string{
					"**/{,.}mise.toml", "**/{,.}mise.*.toml", "**/{,.}mise.lock", "**/{.mise,.mise-tasks,mise-tasks,.rtx}",
					"**/mise/{config.toml,conf.d,tasks}", "**/mise/config.*.toml", "**/.config/mise", "**/{,.}mise.*.lock",
					"**/.rtx.toml", "**/.miserc{,.*}.toml", "**/.config/miserc{,.*}.toml",
				},
			},
			{
				Name:   "asdf",
				Source: "https://asdf-vm.com/manage/configuration.html#tool-versions", // checked 2026-11-23
				Paths:  []string{"**/{.tool-versions,.asdfrc}"},
			},
			{
				Name:   "proto",
				Source: "https://moonrepo.dev/docs/proto/config",
				Paths:  []string{"**/.prototools", "**/.prototools.*"},
			},
			{
				Name:   "autoenv",
				Source: "https://github.com/hyperupcall/autoenv",
				Paths:  []string{"**/{.autoenv,.autoenv.zsh,.autoenv_leave.zsh,.env.leave}"},
			},
			{
				Name:   "smartcd and ondir",
				Source: "https://github.com/cxreg/smartcd",
				Paths:  []string{"**/{.bash_enter,.bash_leave,.bash_enter_leave,.ondirrc}"},
			},
			{
				Name:   "Shadowenv",
				Source: "https://shopify.github.io/shadowenv/",
				Paths:  []string{"**/.shadowenv.d"},
			},
			{
				Name:   "Hermit",
				Source: "https://cashapp.github.io/hermit/usage/shell/",
				Paths:  []string{"**/bin/{hermit,activate-hermit,hermit.hcl}"},
			},
			{
				Name:   "rvm and rbenv-vars",
				Source: "https://rvm.io/workflow/projects",
				Paths:  []string{"**/{.rvmrc,.rbenv-vars,.rbenvrc,.versions.conf}"},
			},
			{
				Name:   "rustup",
				Source: "https://rust-lang.github.io/rustup/overrides.html#the-toolchain-file",
				Paths:  []string{"**/rust-toolchain", "**/rust-toolchain.toml"},
			},
			{
				Name:   "tmux, screen and zellij",
				Source: "https://manpages.debian.org/stable/tmux/tmux.1.en.html",
				Paths: []string{
					"**/{.tmux.conf,.screenrc,.tmuxinator.yml,.tmuxp.yaml,.tmuxp.yml,.tmuxp.json}", "**/.config/{tmux,zellij}",
				},
			},
			{
				Name:   "Python",
				Source: "https://docs.python.org/3/library/pdb.html",
				Paths: []string{
					"**/{.pdbrc,.pdbrc.py,.pythonrc,.pythonrc.py,.pythonstartup,.ipython}",
					"**/{ipython,jupyter,jupyter_server,jupyter_notebook,jupyter_lab,jupyter_console}_config.{py,json}",
				},
			},
			{
				Name:   "Ruby",
				Source: "https://docs.ruby-lang.org/en/master/IRB.html",
				Paths:  []string{"**/{.irbrc,_irbrc,$irbrc,irb.rc,.pryrc,.byebugrc,.rdebugrc,.rdbgrc,.rdbgrc.rb,.debugrc,.gemrc}"},
			},
			{
				Name:   "Perl",
				Source: "https://perldoc.perl.org/perl5db.pl",
				Paths:  []string{"**/{.perldb,.perltidyrc,perltidy.ini,.perlcriticrc,.proverc,.replyrc,.ackrc}"},
			},
			{
				Name:   "R",
				Source: "https://stat.ethz.ch/R-manual/R-devel/library/base/html/Startup.html",
				Paths:  []string{"**/{.Rprofile,.Renviron,.RData,.First.R}", "**/renv/activate.R", "**/packrat/init.R"},
			},
			{
				Name:   "MATLAB and Octave",
				Source: "https://docs.octave.org/latest/Startup-Files.html",
				Paths:  []string{"**/{.octaverc,startup.m,octaverc}"},
			},
			{
				Name:   "Julia",
				Source: "https://docs.julialang.org/en/v1/manual/command-line-interface/",
				Paths:  []string{"**/{.julia,.juliarc.jl}"},
			},
			{
				Name:   "Elixir and Erlang",
				Source: "https://hexdocs.pm/iex/IEx.html#module-the-iex-exs-file",
				Paths:  []string{"**/{.iex.exs,.erlang}"},
			},
			{
				Name:   "Haskell",
				Source: "https://downloads.haskell.org/ghc/latest/docs/users_guide/ghci.html#the-ghci-and-haskeline-files",
				Paths:  []string{"**/.ghci"},
			},
			{
				Name:   "OCaml",
				Source: "https://ocaml.org/manual/5.3/toplevel.html",
				Paths:  []string{"**/.ocamlinit"},
			},
			{
				Name:   "gnuplot",
				Source: "http://gnuplot.info/docs_6.0/loc20107.html",
				Paths:  []string{"**/.gnuplot"},
			},
			{
				Name:   "databases",
				Source: "https://www.postgresql.org/docs/current/app-psql.html",
				Paths:  []string{"**/{.psqlrc,.sqliterc,.my.cnf,.mylogin.cnf,.mongorc.js,.mongoshrc.js,.duckdbrc}"},
			},
			{
				Name:   "Lisp and Scheme",
				Source: "http://www.sbcl.org/manual/#Initialization-Files",
				Paths:  []string{"**/{.sbclrc,.clisprc,.clisprc.lisp,.eclrc,.guile,.racketrc}"},
			},
			{
				Name:   "session of a desktop",
				Source: "https://manpages.debian.org/stable/x11-common/Xsession.5.en.html",
				Paths: []string{
					"**/{.xinitrc,.xsession,.xsessionrc,.xprofile,.xserverrc,.pam_environment}",
					"**/.config/{autostart,systemd,environment.d}",
				},
			},
			{
				Name:   "ssh and gpg",
				Source: "https://manpages.debian.org/stable/openssh-client/ssh_config.5.en.html",
				Paths:  []string{"**/{.ssh,.gnupg}"},
			},
			{
				Name:   "Devbox",
				Source: "https://www.jetify.com/docs/devbox/configuration/",
				Paths:  []string{"**/devbox.json"},
			},
			{
				Name:   "Flox",
				Source: "https://flox.dev/docs/reference/command-reference/manifest.toml/",
				Paths:  []string{"**/.flox/env"},
			},
			{
				Name:   "devenv",
				Source: "https://devenv.sh/reference/options/",
				Paths:  []string{"**/devenv{,.local}.{nix,yaml}"},
			},
			{
				Name:   "Pixi",
				Source: "https://pixi.sh/latest/reference/pixi_configuration/",
				Paths:  []string{"**/.pixi/config.toml"},
			},
			{
				Name:   "PsySH",
				Source: "https://github.com/bobthecow/psysh/wiki/Configuration",
				Paths:  []string{"**/.psysh.php"},
			},
		},
	},
}
