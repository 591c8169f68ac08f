package sshkeys

import (
	"bytes"
	"context"
	"crypto/sha512"
	"errors"
	"strings"
	"unicode/utf8"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

const (
	gitNamespace = "git"
	gitHash      = "sha512"
)

// signGit signs the text of a commit or a tag. The hash is made here, so that what is shown is what is signed.
func (c *client) signGit(ctx context.Context, g gitMessage) (*ssh.Signature, error) {
	hash := sha512.Sum512(g.Text)
	data := append([]byte(signatureMagic), ssh.Marshal(struct {
		Namespace, Reserved, Hash string
		Sum                       []byte
	}{gitNamespace, "", gitHash, hash[:]})...)
	target, err := object(g.Text)
	q := Question{Op: "sign", Target: target, Fingerprint: g.Fingerprint, Text: string(g.Text)}
	return c.sign(ctx, q, data, agent.SignatureFlagRsaSha512, err)
}

// object says what a text is: a commit with the beginning of its message, or a tag.
func object(text []byte) (string, error) {
	head, message, ok := bytes.Cut(text, []byte("\n\n"))
	switch {
	case !utf8.Valid(text) || bytes.ContainsRune(text, 0):
		return "unknown", errors.New("what is signed is no UTF-8, and could not be shown")
	case ok && bytes.HasPrefix(head, []byte("tree ")):
		line, _, _ := strings.Cut(string(message), "\n")
		return "commit " + string([]rune(line)[:min(len([]rune(line)), 100)]), nil
	case ok && bytes.HasPrefix(head, []byte("object ")):
		_, name, _ := strings.Cut(string(head), "\ntag ")
		name, _, _ = strings.Cut(name, "\n")
		return "tag " + string([]rune(name)[:min(len([]rune(name)), 100)]), nil
	}
	return "unknown", errors.New("this is no commit and no tag, and so not signed")
}
