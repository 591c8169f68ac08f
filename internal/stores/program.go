package stores

import "syscall"

// Program returns the path of the program of the drivers for exec in this process, and the user that it runs as; nil is this
// process's own.
func (s *Stores) Program() (path string, user *syscall.Credential, err error) {
	b, err := s.drivers.find()
	if err != nil {
		return "", nil, err
	}
	if s.drivers.host.Root {
		user = &syscall.Credential{Uid: StoresUser, Gid: StoresUser}
	}
	return b.Path(), user, nil
}
