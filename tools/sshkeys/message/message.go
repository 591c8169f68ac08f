// Package message has what the two ends of an agent's way to SSH keys say to each other, and where they meet in a sandbox.
package message

// Where a sandbox has them.
const (
	Program = "/run/scopefs/ssh"            // scopefs-ssh: git signs with it, and ssh reaches hosts by it
	Socket  = "/run/scopefs/ssh-agent.sock" // the agent protocol: see package sshkeys
)

// SignGit is an extension of the agent protocol: its contents are two strings, the fingerprint of a key and the text of a commit or a tag.
// The answer is that to a request for a signature.
const SignGit = "sign-git@scopefs"

// The messages of the agent protocol that both ends know: draft-ietf-sshm-ssh-agent, section 6.
const (
	SignResponse = 14
	Extension    = 27
)

// MaxFrame bounds a message, in bytes.
const MaxFrame = 1 << 20
