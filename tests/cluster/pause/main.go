// Command pause is the first process of every pod's sandbox: it holds the pod's namespaces open, reaps what is
// orphaned into it, and ends when it is told to. It must not do anything else.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		for {
			var status syscall.WaitStatus
			if child, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil); child <= 0 || err != nil {
				break
			}
		}
	}
}
