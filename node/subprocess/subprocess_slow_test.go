//go:build slow

package subprocess_test

// The process keeps the pipes open, and the command waits two seconds for it.
func init() { leaveBehind["in pipes"] = `sleep 600 & echo $!` }
