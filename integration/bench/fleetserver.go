package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// natsServer is the part that is a server of NATS with JetStream, until its standard input ends. It prints its port.
func natsServer(args arguments) error {
	var port int
	if err := args[1:].numbers(&port); err != nil {
		return err
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: args[0],
		NoSigs: true, Authorization: benchSecret, NoLog: true})
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		return fmt.Errorf("the server does not start in %s", args[0])
	}
	fmt.Println(s.Addr().(*net.TCPAddr).Port)
	_, err = io.Copy(io.Discard, os.Stdin)
	s.Shutdown()
	s.WaitForShutdown()
	return err
}

// natsd is a server in a process of its own, so that its memory can be read. It keeps its port and its files.
type natsd struct {
	dir   string
	port  int
	cmd   *exec.Cmd
	input io.Closer
}

func (n *natsd) start() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	n.cmd = exec.Command(self, "natsd", n.dir, strconv.Itoa(n.port))
	n.cmd.Stderr = os.Stderr
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if n.input, err = n.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := n.cmd.StdoutPipe()
	if err == nil {
		err = n.cmd.Start()
	}
	if err == nil {
		_, err = fmt.Fscan(out, &n.port)
	}
	return err
}

func (n *natsd) stop() error {
	n.input.Close()
	return n.cmd.Wait()
}

// stored returns the bytes of the server's files on the disk.
func (n *natsd) stored() (bytes int64, err error) {
	err = filepath.Walk(n.dir, func(_ string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			bytes += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return err
	})
	return bytes, err
}
