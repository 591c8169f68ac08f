// Package interrupted retries system calls that a signal interrupts.
package interrupted

import "golang.org/x/sys/unix"

// attempts bounds the retries. A call that waits for long, such as poll(2), has a loop of its own: the runtime's signals
// interrupt it any number of times.
const attempts = 1000

// Retry calls f until it returns another error than EINTR (signal(7)), or has returned it a thousand times.
func Retry(f func() error) (err error) {
	for range attempts {
		if err = f(); err != unix.EINTR {
			break
		}
	}
	return err
}
