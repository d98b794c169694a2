// Package folder keeps MESS threads as files (MESSE-AF) in a thread folder, which may be a git repository. A thread
// folder has a folder for each state, and below that a folder for each thread.
//
// [Mirror] keeps the threads of an exchange in such a folder and applies what other tools write there.
// [Import] adopts the threads of a directory once, and [Export] writes one thread. All access goes through one
// os.Root, so no name leads out of the directory.
package folder
