// Command scopefs-ssh runs in a sandbox. As the ProxyCommand of ssh (scopefs-ssh connect HOST PORT) it reaches a host through the
// agent's network. As gpg.ssh.program of git (scopefs-ssh -Y sign ...) it has a commit or a tag signed, whose text it hands over; all else
// that git asks of that program is ssh-keygen's.
package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"os"
	"os/exec"
	"strings"

	"github.com/scopefs/scopefs/internal/companion"
	"github.com/scopefs/scopefs/tools/sshkeys/message"
)

func main() {
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 3 && args[0] == "connect":
		err = connect(args[1], args[2])
	case len(args) > 1 && args[0] == "-Y" && args[1] == "sign":
		err = sign(args[2:])
	default:
		var keygen string
		if keygen, err = exec.LookPath("ssh-keygen"); err == nil {
			err = companion.Exec(keygen, append([]string{"ssh-keygen"}, args...)...)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "scopefs:", err)
		os.Exit(1)
	}
}

// proxyAddress is where a sandbox has its network: pid1.ProxyAddr.
const proxyAddress = "127.0.0.1:3128"

// connect passes standard input and output to a host, by CONNECT (RFC 9110, section 9.3.6).
func connect(host, port string) error {
	conn, err := net.Dial("tcp", proxyAddress)
	if err != nil {
		return fmt.Errorf("this sandbox has no network: %w", err)
	}
	defer conn.Close()
	to := net.JoinHostPort(strings.Trim(host, "[]"), port)
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", to, to); err != nil {
		return err
	}
	r := bufio.NewReader(conn)
	text := textproto.NewReader(r)
	status, err := text.ReadLine()
	if err == nil {
		_, err = text.ReadMIMEHeader()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", to, err)
	}
	_, code, _ := strings.Cut(status, " ")
	if code, reason, _ := strings.Cut(code, " "); code != "200" {
		return fmt.Errorf("%s", reason)
	}
	if os.Getenv("SSH_AUTH_SOCK") == "" {
		fmt.Fprintln(os.Stderr, "scopefs: this agent has no SSH key: ask your operator: ssh_keys of the definition, or scopefs run --ssh-agent KEY")
	}
	go func() {
		_, _ = io.Copy(conn, os.Stdin)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(os.Stdout, r)
	return err
}

// sign signs a file as ssh-keygen -Y sign does, beside it with the suffix .sig: -n git -f KEY [-U] FILE.
func sign(args []string) error {
	var namespace, key, file string
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case arg == "-n" && i+1 < len(args):
			i++
			namespace = args[i]
		case arg == "-f" && i+1 < len(args):
			i++
			key = args[i]
		case strings.HasPrefix(arg, "-"):
		default:
			file = arg
		}
	}
	if namespace != "git" {
		return fmt.Errorf("only commits and tags are signed, not %q", namespace)
	}
	public, err := os.ReadFile(key)
	if err != nil {
		return fmt.Errorf("user.signingkey: %w", err)
	}
	fields := strings.Fields(string(public))
	if len(fields) < 2 {
		return fmt.Errorf("user.signingkey: %s is no public key", key)
	}
	blob, err := base64.StdEncoding.DecodeString(fields[1])
	if err != nil {
		return fmt.Errorf("user.signingkey: %s is no public key", key)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(blob)
	fingerprint := "SHA256:" + base64.RawStdEncoding.EncodeToString(sum[:])
	signature, err := ask(fingerprint, text)
	if err != nil {
		return err
	}
	armored := "-----BEGIN SSH SIGNATURE-----\n"
	all := base64.StdEncoding.EncodeToString(sshsig(blob, signature))
	for len(all) > 0 {
		n := min(70, len(all))
		armored += all[:n] + "\n"
		all = all[n:]
	}
	return os.WriteFile(file+".sig", []byte(armored+"-----END SSH SIGNATURE-----\n"), 0o600)
}

// ask has a text signed.
func ask(fingerprint string, text []byte) (signature []byte, err error) {
	conn, err := net.Dial("unix", message.Socket)
	if err != nil {
		return nil, fmt.Errorf("no key is here to sign with: git commit --no-gpg-sign, or ask your operator for ssh_keys or run --ssh-agent: %w", err)
	}
	defer conn.Close()
	body := []byte{message.Extension}
	for _, part := range [][]byte{[]byte(message.SignGit), []byte(fingerprint), text} {
		body = field(body, part)
	}
	if len(body) > message.MaxFrame {
		return nil, fmt.Errorf("the text is longer than 1 MiB")
	}
	if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)); err != nil {
		return nil, err
	}
	var head [4]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return nil, err
	}
	answer := make([]byte, min(binary.BigEndian.Uint32(head[:]), message.MaxFrame))
	if _, err := io.ReadFull(conn, answer); err != nil {
		return nil, err
	}
	if len(answer) < 5 || answer[0] != message.SignResponse || int(binary.BigEndian.Uint32(answer[1:])) != len(answer)-5 {
		return nil, fmt.Errorf("not signed with %s: your operator has the reason: commit without a signature (git commit --no-gpg-sign), or ask", fingerprint)
	}
	return answer[5:], nil
}

// field appends a string of the SSH protocol: RFC 4251, section 5.
func field(to, text []byte) []byte {
	return append(binary.BigEndian.AppendUint32(to, uint32(len(text))), text...)
}

// sshsig returns a signature as PROTOCOL.sshsig of OpenSSH has it.
func sshsig(key, signature []byte) []byte {
	all := binary.BigEndian.AppendUint32([]byte("SSHSIG"), 1)
	for _, part := range [][]byte{key, []byte("git"), nil, []byte("sha512"), signature} {
		all = field(all, part)
	}
	return all
}
