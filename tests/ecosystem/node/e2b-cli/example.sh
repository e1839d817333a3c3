id=$(e2b sandbox create base --detach)
e2b sandbox exec "$id" python3 -c 'print(6 * 7)'
e2b sandbox list
e2b sandbox logs "$id"
e2b sandbox metrics "$id"
e2b sandbox kill "$id"
