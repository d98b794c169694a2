package main

import (
	"os"
	"testing"
	"time"
)

func TestProcess(t *testing.T) {
	before, err := processCPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	start := ownCPU()
	for x := 0; ownCPU()-start < 100*time.Millisecond; x++ {
		_ = x * x
	}
	after, err := processCPU(os.Getpid())
	if used := after - before; err != nil || used < 60*time.Millisecond || used > 10*time.Second {
		t.Errorf("100 ms of work are %v in /proc, %v", used, err)
	}
	if n, err := resident(os.Getpid()); err != nil || n < 1<<20 {
		t.Errorf("resident = %d, %v", n, err)
	}
	if n, err := wakeUps(os.Getpid()); err != nil || n < 1 {
		t.Errorf("wakeUps = %d, %v", n, err)
	}
	if _, err := processCPU(1 << 30); err == nil {
		t.Error("a process that does not exist has a processor time")
	}
}
