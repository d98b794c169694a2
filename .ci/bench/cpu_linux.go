package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// tick is the unit of the times in /proc: USER_HZ, which is 100 on every architecture that Go supports.
const tick = 10 * time.Millisecond

// processCPU returns the processor time that a process has used, including its ended threads.
func processCPU(pid int) (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field is the name in parentheses. The name may contain spaces and parentheses, too.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	var ticks int64
	for _, f := range fields[11:13] { // utime and stime, fields 14 and 15 of proc(5)
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}

// ownCPU returns the processor time that this process has used.
func ownCPU() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// resident returns the bytes of memory that a process occupies.
func resident(pid int) (int64, error) {
	kib, err := statusNumber(fmt.Sprintf("/proc/%d/status", pid), "VmRSS:")
	return kib << 10, err
}

// anonymous returns the memory of a process that no file backs, in bytes.
func anonymous(pid int) (int64, error) {
	kib, err := statusNumber(fmt.Sprintf("/proc/%d/status", pid), "RssAnon:")
	return kib << 10, err
}

// wakeUps returns how often the threads of a process have gone to sleep so far, which is how often they were woken.
func wakeUps(pid int) (int64, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(tasks) == 0 {
		return 0, fmt.Errorf("process %d has no threads in /proc", pid)
	}
	var sum int64
	for _, task := range tasks {
		n, err := statusNumber(task, "voluntary_ctxt_switches:")
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// statusNumber returns the number after key in a status file of /proc.
func statusNumber(path, key string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			return strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s", path, key)
}

// syncData makes the data written to f durable in the same way as bbolt.
func syncData(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }
