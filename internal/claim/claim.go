// Package claim has a file name the host that uses a directory of a shared file system. There flock(2) may hold on one host
// alone, as on sshfs. The file stays after a crash, when only the operator knows whether that host is gone.
package claim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A Claim is the use of a directory by this process. Processes of one host share its file.
type Claim struct {
	file *os.File // nil: nothing was claimed, or it is left
	name string
}

// UsedError reports that another host has the file.
type UsedError struct {
	Host string // its name, as that host wrote it
	File string
}

func (e *UsedError) Error() string {
	return fmt.Sprintf("a daemon of the host %q uses it: if that host is gone, remove %s", e.Host, e.File)
}

// The bounds of a claim.
const (
	maxHost   = 4 << 10 // bytes of the file
	tries     = 50      // while other processes make or remove the file
	tryPause  = 20 * time.Millisecond
	emptyLife = 500 * time.Millisecond // after which the process that made an empty file has died

	releaseTries = 8
	releasePause = 5 * time.Millisecond
)

// Take makes the file for this host, or uses the one that this host has. It returns a *UsedError if another host has it, or with
// fenced replaces it: the other host can change nothing any more.
func Take(name string, fenced bool) (*Claim, error) {
	this, err := thisHost()
	if err != nil {
		return nil, fmt.Errorf("this host has no name: %w", err)
	}
	for range tries {
		c, has, err := open(name, this)
		if err != nil {
			return nil, fmt.Errorf("claim %s: %w", name, err)
		}
		if c != nil && bytes.Equal(has, this) {
			return c, nil
		}
		if c != nil {
			c.file.Close()
			if fenced {
				_ = os.Remove(name)
				continue
			}
			_, host, _ := bytes.Cut(bytes.TrimSpace(has), []byte(" "))
			return nil, &UsedError{string(host), name}
		}
		time.Sleep(tryPause)
	}
	return nil, fmt.Errorf("claim %s: other processes make and remove it: remove it", name)
}

// open opens the file with what it has, and makes it with what this host writes if it is missing. It returns nil while another
// process makes or removes the file.
func open(name string, this []byte) (*Claim, []byte, error) {
	const flags = os.O_RDWR | unix.O_NOFOLLOW | unix.O_NONBLOCK
	f, err := os.OpenFile(name, flags|os.O_CREATE|os.O_EXCL, 0o600)
	made := err == nil
	if errors.Is(err, fs.ErrExist) {
		f, err = os.OpenFile(name, flags, 0)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	c, has, err := shared(f, name, this, made)
	if c == nil {
		f.Close()
	}
	return c, has, err
}

func shared(f *os.File, name string, this []byte, made bool) (*Claim, []byte, error) {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = nil
		}
		return nil, nil, err
	}
	if made {
		if _, err := f.Write(this); err != nil {
			return nil, nil, err
		}
		return &Claim{f, name}, this, f.Sync()
	}
	open, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !open.Mode().IsRegular() {
		return nil, nil, errors.New("it is no file: remove it")
	}
	if there, err := os.Lstat(name); err != nil || !os.SameFile(open, there) { // it was removed meanwhile
		return nil, nil, nil
	}
	has, err := io.ReadAll(io.LimitReader(f, maxHost))
	if err != nil {
		return nil, nil, err
	}
	if len(has) > 0 {
		return &Claim{f, name}, has, nil
	}
	if time.Since(open.ModTime()) > emptyLife {
		return nil, nil, errors.New("it is empty, of a daemon that has died: remove it")
	}
	return nil, nil, nil
}

// Leave keeps the file: this host goes on to use the directory. Of a nil Claim it does nothing.
func (c *Claim) Leave() {
	if c != nil && c.file != nil {
		c.file.Close()
		c.file = nil
	}
}

// Release removes the file unless another process of this host uses it. Of a nil Claim, or after Leave, it does nothing.
func (c *Claim) Release() {
	if c == nil || c.file == nil {
		return
	}
	defer c.Leave()
	// The lock of a process that reads the file or releases it, too, is short: flock(2) gives up the old lock when it converts.
	for range releaseTries {
		err := unix.Flock(int(c.file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			time.Sleep(releasePause)
			continue
		}
		open, serr := c.file.Stat()
		there, lerr := os.Lstat(c.name)
		if err == nil && serr == nil && lerr == nil && os.SameFile(open, there) { // else the operator has removed it, and another host made one
			_ = os.Remove(c.name)
		}
		return
	}
}

// thisHost identifies this host: machine-id(5) and the name. Copies of a virtual machine may have one id.
func thisHost() ([]byte, error) {
	id, err := os.ReadFile("/etc/machine-id")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	name, err := os.Hostname()
	return fmt.Appendf(nil, "%s %s\n", bytes.TrimSpace(id), name), err
}
