package manual

// Example is a command with its purpose.
type Example struct{ About, Command string }

// Examples lists the examples of each command; the key "" is the main page.
var Examples = map[string][]Example{
	"": {
		{"See the whole flow on this machine, with three processes:", "agentmesh demo"},
		{"Run directory and node on 127.0.0.1:3141. The first run makes an agent:", "agentmesh serve"},
		{"Find an agent, and write to an id of the list:", "agentmesh discover sarah --capability scheduling\nagentmesh send am_… 'Coffee on Friday?' --wait"},
	},
	"quickstart": {{"Set up a directory that anybody with a code can join:", "agentmesh --data /var/lib/agentmesh quickstart directory mesh.example.org --tls"}, {"Set up an agent whose mail a directory keeps:", "agentmesh quickstart agent --join https://mesh.example.org/join#CODE"}},
	"init":       {{"Make an agent whose keys need a passphrase at every start:", "agentmesh init --name \"Sarah's agent\" --encrypt"}},
	"serve":      {{"Run only a node, and list it in somebody else's directory:", "agentmesh serve --roles node --directory https://mesh.example.org/v1"}, {"Serve on the internet with a certificate from Let's Encrypt, and accept its terms:", "agentmesh serve --tls agent.example.org"}, {"Serve on the internet behind a reverse proxy:", "agentmesh serve --public-url https://agent.example.org --listen 127.0.0.1:3141"}},
	"audit":      {{"List what you decided this week:", "agentmesh audit --since 7d --kind decided"}, {"Export the log, and check an export elsewhere:", "agentmesh audit --json\nagentmesh verify audit.jsonl"}},
	"page":       {{"Decide, read and answer in a browser on this machine:", "agentmesh page"}},
	"status":     {{"Show the directories that list the card, and what waits:", "agentmesh status"}},
	"doctor":     {{"Check everything, from file modes to the clock:", "agentmesh doctor"}},
	"demo":       {{"Keep directory and nodes running for curl:", "agentmesh demo --keep"}},
	"discover":   {{"Find agents that can schedule and mention coffee:", "agentmesh discover coffee --capability scheduling"}},
	"card":       {{"Show the agent's own card:", "agentmesh card show"}, {"Check a card before it is published:", "agentmesh card validate card.json"}},
	"send": {
		{"Send a text and wait for the answer:", "agentmesh send sarah 'Coffee on Friday?' --wait"},
		{"Send a payload from a file:", "agentmesh send sarah --intent mesh.schedule @propose.json"},
		{"Encrypt the message so that only its recipient can read it:", "agentmesh send sarah 'The code of the door is 4711' --seal"},
	},
	"reply":         {{"Accept a proposal:", "agentmesh reply conv_4f1 --action accept --wait"}, {"Answer the item that agentmesh inbox wait printed, unless it was answered already:", "agentmesh reply in_0199 'Gladly.'"}},
	"calendar":      {{"Cancel an agreed event:", "agentmesh calendar cancel 4f1c --reason 'a fever'"}},
	"inbox":         {{"Print new items, one JSON document per line:", "agentmesh inbox --follow --json"}},
	"approvals":     {{"List what waits, and let a sender in:", "agentmesh approvals\nagentmesh approvals approve ask_7c2"}},
	"conversations": {{"Read a transcript:", "agentmesh conversations show conv_4f1"}},
	"peers":         {{"Add a card that you trust, under a short name:", "agentmesh peers add https://agent.example.org/agentmesh --alias sarah"}, {"Block an agent:", "agentmesh peers block am_2xk"}},
	"mew": {
		{"Watch a space, and write in it:", "agentmesh mew tail --space lab\nagentmesh mew chat 'good morning' --space lab"},
	},
	"mess": {
		{"Make a request, and follow it:", "agentmesh mess request 'what is in the fridge?' --id fridge\nagentmesh mess status fridge"},
		{"Carry out a request, with a photo:", "agentmesh mess list --status pending\nagentmesh mess claim 2026-01-31-001\nagentmesh mess complete 2026-01-31-001 'milk and eggs' --photo fridge.jpg"},
		{"Fetch a picture that a thread refers to by its address:", "agentmesh mess fetch 2026-01-31-001 https://example.com/fridge.jpg --out fridge.jpg"},
	},
	"keys":       {{"Rotate the signing key:", "agentmesh keys rotate"}},
	"token":      {{"Make a link for one member:", "agentmesh token create --label 'for Sarah' --days 14"}},
	"config":     {{"Find errors in the configuration, and list the guards that it turns off:", "agentmesh config check"}},
	"check":      {{"Verify keys, database and every transcript, while agentmesh serve is not running:", "agentmesh check"}},
	"backup":     {{"Write a backup to a file:", "agentmesh backup monday.zip"}, {"Encrypt the backup to an age key on another machine:", "agentmesh backup monday.age --recipient age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj"}},
	"restore":    {{"Restore into a new data directory:", "agentmesh restore monday.zip --data restored"}, {"Restore an encrypted backup:", "agentmesh restore monday.age --identity key.txt --data restored"}},
	"message":    {{"Print the bytes that a signature covers:", "agentmesh message canonical message.json"}, {"Verify a signature:", "agentmesh message verify --public-key key.pub signed.json"}},
	"completion": {{"Print the script for bash, to be sourced:", "agentmesh completion bash"}},
}
